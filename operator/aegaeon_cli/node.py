"""Shared memory and models of this node, their owners and orphans: `aegaeon doctor --check`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from aegaeon_operator.podrunner import SegmentsFolder, dead_runs, default_base, node_folder, runs_of, sweep_node
from aegaeon_operator.podrunner import sweep as sweep_runs
from aegaeon_sidecar.engine.sweeper import SharedFile, survey, sweep
from aegaeon_sidecar.weights.disk import ModelOnDisk
from aegaeon_sidecar.weights.disk import survey as survey_disk

_MIB = 1 << 20
_REMEDY = "its process is dead: remove it with `aegaeon doctor --sweep`"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of segments and its files; `run` when `aegaeon up` made it."""

    path: Path
    run: SegmentsFolder | None
    files: list[SharedFile]

    @property
    def orphaned(self) -> bool:
        """True when the entire folder is orphaned: its run is dead."""
        return self.run is not None and not self.run.alive

    @property
    def orphans(self) -> list[SharedFile]:
        """The files whose owners are dead."""
        return self.files if self.orphaned else [file for file in self.files if file.orphaned]


def look(shared_memory: Path, more: Iterable[Path]) -> list[Folder]:
    """The folders of this user's runs, and `more`: the `segments` of sidecars that `aegaeon up` did not start."""
    runs = runs_of(node_folder(shared_memory))
    return [
        *(Folder(path, SegmentsFolder(path, False, ()), []) for path in dead_runs(default_base())),
        *(Folder(run.path, run, survey(run.path)) for run in runs),
        *(Folder(path, None, survey(path)) for path in more),
    ]


def clean(shared_memory: Path, more: Iterable[Path]) -> list[Path]:
    """Remove every orphan; returns the removed paths."""
    removed = sweep_runs(default_base())
    removed += sweep_node(node_folder(shared_memory))
    living = [run.path for run in runs_of(node_folder(shared_memory))]
    return removed + [path for folder in (*living, *more) for path in sweep(folder)]


def as_json(folders: list[Folder], disks: Iterable[Path]) -> str:
    """The folders as JSON. `disks`: folders of disk tiers."""
    report = {
        "orphans": orphans(folders),
        "folders": [_folder(folder) for folder in folders],
        "disks": [{"path": str(disk), "models": [_stored(entry) for entry in survey_disk(disk)]} for disk in disks],
    }
    return json.dumps(report, indent=2)


def _stored(entry: ModelOnDisk) -> dict[str, object]:
    return {
        "name": entry.directory.name,
        "source": entry.source,
        "bytes": entry.nbytes,
        "complete": entry.complete,
        "pids": list(entry.pids),
    }


def orphans(folders: list[Folder]) -> int:
    """The number of orphaned files and folders."""
    return sum(len(folder.orphans) + folder.orphaned for folder in folders)


def _folder(folder: Folder) -> dict[str, object]:
    run = folder.run and {"alive": folder.run.alive, "pids": list(folder.run.pids)}
    return {"path": str(folder.path), "run": run, "files": [_file(file, folder) for file in folder.files]}


def _file(file: SharedFile, folder: Folder) -> dict[str, object]:
    return {
        "name": file.path.name,
        "kind": file.kind.value,
        "bytes": file.nbytes,
        "held": file.held,
        "pids": list(file.pids),
        "detail": file.detail,
        "orphaned": file in folder.orphans,
    }


def as_text(folders: list[Folder], disks: Iterable[Path]) -> Iterator[str]:
    """The folders for people, a line each. `disks`: folders of disk tiers, which have no orphans."""
    for folder in folders:
        yield f"{_mark(folder.orphaned)}  {folder.path}  {_whose(folder)}"
        for file in folder.files:
            yield f"{_mark(file in folder.orphans)}    {_line(file)}"
    for disk in disks:
        yield f"{_mark(False)}  {disk}  disk tier"
        yield from (f"{_mark(False)}    {_stored_line(entry)}" for entry in survey_disk(disk))
    count = orphans(folders)
    if count:
        nbytes = sum(file.nbytes for folder in folders for file in folder.orphans)
        yield f"{count} orphans, {nbytes / _MIB:.1f} MiB; {_REMEDY}"
    else:
        yield f"no orphans in {len(folders)} folders"


def _mark(orphaned: bool) -> str:
    return click.style("orphan", fg="red") if orphaned else click.style("    ok", fg="green")


def _whose(folder: Folder) -> str:
    if folder.run is None:
        return "segments"
    return f"run of {_pids(folder.run.pids)}" if folder.run.alive else "its run is dead"


def _line(file: SharedFile) -> str:
    facts = [file.detail, _holders(file)]
    return f"{file.kind.value:<18}{file.path.name}  {file.nbytes / _MIB:.1f} MiB  " + "; ".join(filter(None, facts))


def _stored_line(entry: ModelOnDisk) -> str:
    kind, verb = ("model", "pinned") if entry.complete else ("part of a model", "fetched")
    whose = f"; {verb} by {_pids(entry.pids)}" if entry.pids else ""
    return f"{kind:<18}{entry.directory.name}  {entry.nbytes / _MIB:.1f} MiB  {entry.source}{whose}"


def _holders(file: SharedFile) -> str:
    if file.pids:
        return f"{'held' if file.held else 'pinned'} by {_pids(file.pids)}"
    return "held by a process that is not visible here" if file.held else ""


def _pids(pids: Iterable[int]) -> str:
    return ", ".join(f"process {pid}" for pid in pids) or "a process that is not visible here"
