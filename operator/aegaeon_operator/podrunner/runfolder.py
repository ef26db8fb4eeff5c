"""The folder of one run: config files, logs, and what `aegaeon top` needs to find the run.

A run holds a lock in its folder for as long as it lives, another in its folder of segments, which lies in the node's,
and one in its folder of sockets, whose path is short: each is found and swept away by itself when its run was killed.
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
    """What others may know of a run. `ready` once every pod was ready; from `port` on: what it was started with.

    `scheduler` and `admin` are gRPC targets of the same scheduler, `admin` of the service that changes the pool.
    `folder` is the run's own, in which its reader found the rest.
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
        """The folder of the scheduler's socket and its other ones."""
        return Path(self.scheduler.removeprefix("unix:")).parent


class RunFolder:
    """Owns the run's folder, its sockets' and that of its shared-memory segments, from `create` to `remove`."""

    def __init__(self, path: Path, sockets: SocketFolder, segments: Path, lock: int, lease: int) -> None:
        self.path = path
        self.sockets = sockets.path
        self.segments = segments
        self._sockets = sockets
        self._locks = [lock, lease]

    @classmethod
    def create(cls, base: Path, shared_memory: Path, pool: str) -> RunFolder:
        """A fresh run below `base`; sweeps away what dead runs left. Raises RunnerError when it cannot be had."""
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if base.stat().st_uid != os.getuid():
            raise RunnerError(f"{base}: belongs to another user; remove it, or set TMPDIR to a folder of your own")
        sweep(base)
        node = node_folder(shared_memory)
        sweep_node(node)
        sockets = SocketFolder.create()
        path = _fresh(base, pool)
        lock = claim(path)
        (path / PREFIX_SECRET).write_text(secrets.token_hex(32), "utf-8")  # the folder is its user's alone
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
        """Everything of this run goes: segments first, as the folder is what leads to them. Idempotent."""
        _remove(self.path)
        self._sockets.remove()
        with contextlib.suppress(OSError):  # other runs live there
            self.path.parent.rmdir()
        _remove_if_empty(self.segments.parent)
        while self._locks:
            os.close(self._locks.pop())


def default_base() -> Path:
    """Where runs of this user live: below $XDG_RUNTIME_DIR, else below the folder for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "aegaeon"
    return Path(tempfile.gettempdir()) / f"aegaeon-{os.getuid()}"


def node_folder(shared_memory: Path) -> Path:
    """Where the segments of all runs of this user lie, a folder each, whatever became of the rest of a run."""
    return shared_memory / f"aegaeon-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class SegmentsFolder:
    """The folder of segments of one run. `pids`: of the holders of its lease; none when the run is dead."""

    path: Path
    alive: bool
    pids: tuple[int, ...]


@contextlib.contextmanager
def segments_alone(shared_memory: Path, name: str) -> Iterator[Path]:
    """A folder among those of runs, without the rest of a run; who was killed has it swept away as theirs are."""
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
    """A fresh folder of segments and the lock that says whose it is."""
    path = node / name
    with locked(node):
        path.mkdir(mode=0o700)
        return path, hold(path / _LEASE)


def _remove_if_empty(node: Path) -> None:
    with locked(node), contextlib.suppress(OSError):  # other runs live there
        node.rmdir()


def runs_of(node: Path) -> list[SegmentsFolder]:
    """Every run's folder of segments, dead or alive."""
    if not node.is_dir():
        return []
    with locked(node):
        return [_segments_folder(path) for path in sorted(node.iterdir()) if path.is_dir()]


def sweep_node(node: Path) -> list[Path]:
    """Remove the folders of segments whose run is dead, also where nothing else of the run is left."""
    dead = [run.path for run in runs_of(node) if not run.alive]
    for path in dead:
        shutil.rmtree(path, ignore_errors=True)
    return dead


def _segments_folder(path: Path) -> SegmentsFolder:
    lease = path / _LEASE
    return SegmentsFolder(path, is_held(lease), tuple(holders(lease)))


def sweep(base: Path) -> list[Path]:
    """Remove the runs below `base` whose process is dead; returns their folders."""
    dead = dead_runs(base)
    for path in dead:
        _remove(path)
    return dead


def dead_runs(base: Path) -> list[Path]:
    """The folders of runs whose process is dead."""
    found = base.iterdir() if base.is_dir() else ()
    return sorted(path for path in found if is_dead(path))


def find_run(base: Path, given: Path | None) -> RunState:
    """The run in folder `given`, or the only one that is alive below `base`. Raises RunnerError otherwise."""
    if given is not None:
        if not (given / _STATE).is_file():
            raise RunnerError(f"{given}: is not the folder of a run; `aegaeon up -v` prints the right one")
        return _read(given)
    runs = [path for path in sorted(base.glob("*")) if (path / _STATE).is_file() and is_claimed(path)]
    if not runs:
        raise RunnerError(f"nothing runs here (looked in {base}); start it with: aegaeon up -f examples/quickstart")
    if len(runs) > 1:
        raise RunnerError(f"several runs are alive; choose one with --run: {', '.join(map(str, runs))}")
    return _read(runs[0])


def _fresh(base: Path, pool: str) -> Path:
    """A run that ends at this moment, the last one below `base`, removes that."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return Path(tempfile.mkdtemp(prefix=f"{pool[:20]}-", dir=base))
        base.mkdir(mode=0o700, parents=True, exist_ok=True)


def _read(path: Path) -> RunState:
    return RunState(**json.loads((path / _STATE).read_text("utf-8")), folder=path)


def _remove(path: Path) -> None:
    for elsewhere in (path / "segments", path / "sockets"):
        if elsewhere.is_symlink():
            shutil.rmtree(elsewhere.readlink(), ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)
