"""The folder of a run: configuration, logs, and the state with which other commands find the run.

A run holds a lock in this folder, in its folder of segments below the node's folder, and in its folder of sockets with
a short path, so that each is garbage-collected on its own after the run was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from aegaeon_native.leases import hold, holders, is_held, locked
from aegaeon_operator.errors import RunnerError
from aegaeon_operator.podrunner.sockets import SocketFolder, claim, is_claimed, is_dead
from aegaeon_operator.reconcile.local import PREFIX_SECRET

_STATE = "run.json"
_LEASE = "run.lock"


@dataclass(frozen=True, slots=True)
class RunState:
    """The published state of a run. `ready`: every pod has been ready; from `port` on: the options of its start.

    `scheduler` and `admin`: gRPC targets of the same scheduler; `admin` is the service that changes the pool.
    `folder`: the run's folder, set by the reader.
    """

    pool: str
    pid: int
    url: str
    scheduler: str
    admin: str
    segments: str
    ready: bool = False
    port: int | None = None
    record: str | None = None
    constants: str | None = None
    models: str = ""
    scaling: str = ""
    share_gpu: bool = False
    folder: Path = Path()

    @property
    def sockets(self) -> Path:
        """The folder of the run's sockets."""
        return Path(self.scheduler.removeprefix("unix:")).parent


class RunFolder:
    """The owner of a run's folders (itself, sockets, shared-memory segments), from `create` to `remove`."""

    def __init__(self, path: Path, sockets: SocketFolder, segments: Path, lock: int, lease: int) -> None:
        self.path = path
        self.sockets = sockets.path
        self.segments = segments
        self._sockets = sockets
        self._locks = [lock, lease]

    @classmethod
    def create(cls, base: Path, shared_memory: Path, pool: str) -> RunFolder:
        """Create a run below `base` and garbage-collect dead runs. Raises RunnerError."""
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if base.stat().st_uid != os.getuid():
            raise RunnerError(f"{base} belongs to another user; remove it, or set TMPDIR to a folder of your own")
        sweep(base)
        node = node_folder(shared_memory)
        sweep_node(node)
        sockets = SocketFolder.create()
        path = _fresh(base, pool)
        lock = claim(path)
        (path / PREFIX_SECRET).write_text(secrets.token_hex(32), "utf-8")  # only the user can read the folder
        segments, lease = _leased(node, path.name)
        (path / "segments").symlink_to(segments)
        (path / "sockets").symlink_to(sockets.path)
        return cls(path, sockets, segments, lock, lease)

    def publish(self, state: RunState) -> None:
        """Write the state, atomically."""
        draft = self.path / f"{_STATE}.new"
        draft.write_text(
            json.dumps({name: value for name, value in asdict(state).items() if name != "folder"}), "utf-8"
        )
        draft.replace(self.path / _STATE)

    def log_file(self, pod: str) -> Path:
        return self.path / f"{pod}.log"

    def remove(self) -> None:
        """Remove all folders of the run, segments first, since this folder leads to them. Idempotent."""
        _remove(self.path)
        self._sockets.remove()
        with contextlib.suppress(OSError):  # other runs use it
            self.path.parent.rmdir()
        _remove_if_empty(self.segments.parent)
        while self._locks:
            os.close(self._locks.pop())


def default_base() -> Path:
    """Return the folder of this user's runs: below $XDG_RUNTIME_DIR, else below the folder for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "aegaeon"
    return Path(tempfile.gettempdir()) / f"aegaeon-{os.getuid()}"


def node_folder(shared_memory: Path) -> Path:
    """Return the folder of the segments of all runs of this user, with a folder for each run."""
    return shared_memory / f"aegaeon-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class SegmentsFolder:
    """The folder of segments of a run. `pids`: processes that hold its lock; none: the run is dead."""

    path: Path
    alive: bool
    pids: tuple[int, ...]


@contextlib.contextmanager
def segments_alone(shared_memory: Path, name: str) -> Iterator[Path]:
    """Create a folder of segments without a run; it is garbage-collected like those of runs."""
    node = node_folder(shared_memory)
    sweep_node(node)
    path, lease = _leased(node, f"{name}-{secrets.token_hex(4)}")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _remove_if_empty(node)
        os.close(lease)


def _leased(node: Path, name: str) -> tuple[Path, int]:
    """Create a folder of segments; return it with its lock."""
    path = node / name
    with locked(node):
        path.mkdir(mode=0o700)
        return path, hold(path / _LEASE)


def _remove_if_empty(node: Path) -> None:
    with locked(node), contextlib.suppress(OSError):  # other runs use it
        node.rmdir()


def runs_of(node: Path) -> list[SegmentsFolder]:
    """Return the folders of segments of all runs, dead or alive."""
    if not node.is_dir():
        return []
    with locked(node):
        return [_segments_folder(path) for path in sorted(node.iterdir()) if path.is_dir()]


def sweep_node(node: Path) -> list[Path]:
    """Remove the folders of segments of dead runs, even if the rest of the run no longer exists; return them."""
    dead = [run.path for run in runs_of(node) if not run.alive]
    for path in dead:
        shutil.rmtree(path, ignore_errors=True)
    return dead


def _segments_folder(path: Path) -> SegmentsFolder:
    lease = path / _LEASE
    return SegmentsFolder(path, is_held(lease), tuple(holders(lease)))


def sweep(base: Path) -> list[Path]:
    """Remove the runs below `base` whose process is dead; return their folders."""
    dead = dead_runs(base)
    for path in dead:
        _remove(path)
    return dead


def dead_runs(base: Path) -> list[Path]:
    """Return the folders of runs whose process is dead."""
    runs = base.iterdir() if base.is_dir() else ()
    return sorted(path for path in runs if is_dead(path))


def find_run(base: Path, folder: Path | None) -> RunState:
    """Return the run in `folder`, or else the only live run below `base`. Raises RunnerError."""
    if folder is not None:
        if not (folder / _STATE).is_file():
            raise RunnerError(f"{folder} is not the folder of a run; `aegaeon up -v` prints the folder")
        return _read(folder)
    runs = [path for path in sorted(base.glob("*")) if (path / _STATE).is_file() and is_claimed(path)]
    if not runs:
        raise RunnerError(f"no run found in {base}; start a pool with: aegaeon up -f examples/quickstart")
    if len(runs) > 1:
        raise RunnerError(f"there are several runs; choose one with --run: {', '.join(map(str, runs))}")
    return _read(runs[0])


def _fresh(base: Path, pool: str) -> Path:
    """Create a folder below `base`, which the last run to end may be removing."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return Path(tempfile.mkdtemp(prefix=f"{pool[:20]}-", dir=base))
        base.mkdir(mode=0o700, parents=True, exist_ok=True)


def _read(path: Path) -> RunState:
    return RunState(**json.loads((path / _STATE).read_text("utf-8")), folder=path)


def _remove(path: Path) -> None:
    for link in (path / "segments", path / "sockets"):
        if link.is_symlink():
            shutil.rmtree(link.readlink(), ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)
