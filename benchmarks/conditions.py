"""Under which conditions a figure was measured: commit, date, machine, load, and the state of the sources it measures.

The state is a hash of the sources' contents, kept with each row. So whether a row is older than the last change of what
it measures shows in a checkout alone: without git's history, from an archive, before and after a commit alike.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("figures.toml")
SOURCES = {".py", ".cpp", ".hpp", ".cu", ".proto"}
LOAD = os.getloadavg()[0]  # when the benchmark began: later it is the benchmark's own
Conditions = dict[str, str | int | float | None]


@cache
def measured_paths() -> Mapping[str, tuple[str, ...]]:
    """By result file: the files and folders whose change makes its rows old."""
    table = tomllib.loads(TABLE.read_text("utf-8"))["measures"]
    return {name: tuple(paths) for name, paths in table.items()}


def paths_of(name: str) -> tuple[str, ...]:
    """Those of a result file, of whatever level of processors."""
    return measured_paths().get(re.sub(r"-avx2$", "", name), ())


@cache
def state_of(paths: tuple[str, ...], root: Path = ROOT) -> str:
    """Of all sources below these paths of a checkout."""
    files = (file for path in paths for file in _files(root / path))
    return state((file.relative_to(root).as_posix(), file.read_bytes()) for file in files)


def state(files: Iterable[tuple[str, bytes]]) -> str:
    """A hash of names and contents, in whatever order they come."""
    total = hashlib.sha256()
    for name, content in sorted(files):
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()[:12]


def _files(path: Path) -> Iterable[Path]:
    return (file for file in (path, *path.rglob("*")) if file.suffix in SOURCES and file.is_file())


def conditions(name: str) -> Conditions:
    """Of a row of this result file that is measured at this moment, on this machine and tree. None: unknown."""
    paths = paths_of(name)
    return {
        "commit": commit(paths),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": processor(),
        "cores": os.cpu_count(),
        "load": round(LOAD, 1),
        "sources": state_of(paths) if paths else None,
    }


@cache
def commit(paths: tuple[str, ...]) -> str | None:
    """The checkout's, with a + where these paths differ from it; None without git."""
    head = _git("rev-parse", "--short=8", "HEAD")
    return head and head + "+" * bool(paths and _git("status", "--porcelain", "--", *paths))


def _git(*arguments: str) -> str | None:
    try:
        ended = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None


def processor() -> str:
    """Its name, as Linux has it."""
    try:
        names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    except OSError:
        names = []
    return names[0] if names else platform.machine()
