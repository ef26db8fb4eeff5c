"""What the processes of this node share, who holds it, and what is orphaned: `aegaeon doctor --check`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from aegaeon_operator.podrunner import SegmentsFolder, dead_runs, default_base, node_folder, runs_of, sweep_node
from aegaeon_operator.podrunner import sweep as sweep_runs
from aegaeon_sidecar.engine.sweeper import Found, survey, sweep
from aegaeon_sidecar.weights.disk import ModelOnDisk
from aegaeon_sidecar.weights.disk import survey as survey_disk

_MIB = 1 << 20
_REMEDY = "its process is dead: remove it with `aegaeon doctor --sweep`"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of segments with what is in it; `run` where `aegaeon up` made it."""

    path: Path
    run: SegmentsFolder | None
    files: list[Found]

    @property
    def orphaned(self) -> bool:
        """Whether all of it is to go: its run is dead."""
        return self.run is not None and not self.run.alive

    @property
    def orphans(self) -> list[Found]:
        """The files whose owners are dead."""
        return self.files if self.orphaned else [found for found in self.files if found.orphaned]


def look(shared_memory: Path, others: Iterable[Path]) -> list[Folder]:
    """The folders of this user's runs, and `others`: the `segments` of sidecars that were started otherwise."""
    runs = runs_of(node_folder(shared_memory))
    return [
        *(Folder(path, SegmentsFolder(path, False, ()), []) for path in dead_runs(default_base())),
        *(Folder(run.path, run, survey(run.path)) for run in runs),
        *(Folder(path, None, survey(path)) for path in others),
    ]


def clean(shared_memory: Path, others: Iterable[Path]) -> list[Path]:
    """Remove every orphan; returns what was removed."""
    removed = sweep_runs(default_base())
    removed += sweep_node(node_folder(shared_memory))
    living = [run.path for run in runs_of(node_folder(shared_memory))]
    return removed + [path for folder in (*living, *others) for path in sweep(folder)]


def as_json(folders: list[Folder], disks: Iterable[Path]) -> str:
    """For machines. `disks`: folders of disk tiers."""
    found = {
        "orphans": orphans(folders),
        "folders": [_folder(folder) for folder in folders],
        "disks": [{"path": str(disk), "models": [_stored(entry) for entry in survey_disk(disk)]} for disk in disks],
    }
    return json.dumps(found, indent=2)


def _stored(entry: ModelOnDisk) -> dict[str, object]:
    return {
        "name": entry.directory.name,
        "source": entry.source,
        "bytes": entry.nbytes,
        "complete": entry.complete,
        "pids": list(entry.pids),
    }


def orphans(folders: list[Folder]) -> int:
    """How many files and folders are orphaned."""
    return sum(len(folder.orphans) + folder.orphaned for folder in folders)


def _folder(folder: Folder) -> dict[str, object]:
    run = folder.run and {"alive": folder.run.alive, "pids": list(folder.run.pids)}
    return {"path": str(folder.path), "run": run, "files": [_file(found, folder) for found in folder.files]}


def _file(found: Found, folder: Folder) -> dict[str, object]:
    return {
        "name": found.path.name,
        "kind": found.kind.value,
        "bytes": found.nbytes,
        "held": found.held,
        "pids": list(found.pids),
        "detail": found.detail,
        "orphaned": found in folder.orphans,
    }


def as_text(folders: list[Folder], disks: Iterable[Path]) -> Iterator[str]:
    """For people, a line each. `disks`: folders of disk tiers, where nothing is ever orphaned."""
    for folder in folders:
        yield f"{_mark(folder.orphaned)}  {folder.path}  {_whose(folder)}"
        for found in folder.files:
            yield f"{_mark(found in folder.orphans)}    {_line(found)}"
    for disk in disks:
        yield f"{_mark(False)}  {disk}  disk tier"
        yield from (f"{_mark(False)}    {_stored_line(entry)}" for entry in survey_disk(disk))
    count = orphans(folders)
    if count:
        nbytes = sum(found.nbytes for folder in folders for found in folder.orphans)
        yield f"{count} orphans, {nbytes / _MIB:.1f} MiB; {_REMEDY}"
    else:
        yield f"nothing is orphaned; looked into {len(folders)} folders"


def _mark(orphaned: bool) -> str:
    return click.style("orphan", fg="red") if orphaned else click.style("    ok", fg="green")


def _whose(folder: Folder) -> str:
    if folder.run is None:
        return "segments"
    return f"run of {_pids(folder.run.pids)}" if folder.run.alive else "its run is dead"


def _line(found: Found) -> str:
    facts = [found.detail, _holders(found)]
    return f"{found.kind.value:<18}{found.path.name}  {found.nbytes / _MIB:.1f} MiB  " + "; ".join(filter(None, facts))


def _stored_line(entry: ModelOnDisk) -> str:
    kind, verb = ("model", "pinned") if entry.complete else ("part of a model", "fetched")
    whose = f"; {verb} by {_pids(entry.pids)}" if entry.pids else ""
    return f"{kind:<18}{entry.directory.name}  {entry.nbytes / _MIB:.1f} MiB  {entry.source}{whose}"


def _holders(found: Found) -> str:
    if found.pids:
        return f"{'held' if found.held else 'pinned'} by {_pids(found.pids)}"
    return "held by a process that cannot be seen from here" if found.held else ""


def _pids(pids: Iterable[int]) -> str:
    return ", ".join(f"process {pid}" for pid in pids) or "a process that cannot be seen from here"
