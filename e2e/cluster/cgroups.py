"""The cgroups of a node: a root of its own, because the kubelets of one machine would tidy up each other's pods."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from e2e.cluster.errors import ClusterError

_ROOT = Path("/sys/fs/cgroup")
_PATIENCE_S = 10.0


def make(name: str) -> None:
    """In every hierarchy, of version 1 or 2."""
    for hierarchy in _hierarchies():
        own = hierarchy / name
        own.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (own / file).exists() and not (own / file).read_text("utf-8").strip():
                (own / file).write_text((hierarchy / file).read_text("utf-8"), "utf-8")


def kill(name: str) -> None:
    """Everything in them, and the shims that watch it. Raises ClusterError when something does not die."""
    deadline = time.monotonic() + _PATIENCE_S
    while pids := _processes(name):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"processes of pods do not end: {sorted(pids)}; end them, then `make cluster-down` again"
            )
        for pid in pids:
            with suppress(ProcessLookupError):  # it went with its parent
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)  # the kernel ends them; there is nothing to wait on


def remove(name: str) -> None:
    """The empty cgroups, innermost first."""
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / name, topdown=False):
            with suppress(FileNotFoundError):  # so did containerd
                Path(folder).rmdir()


def of_container(name: str, container: str) -> Path:
    """Where the memory of a node's container is bounded, in version 1 or 2. Raises ClusterError when it is gone."""
    hierarchy = _ROOT if _is_unified() else _ROOT / "memory"
    for folder, inner, _ in os.walk(hierarchy / name):
        if container in inner:
            return Path(folder) / container
    raise ClusterError(f"no container {container} runs on {name}")


def _is_unified() -> bool:
    return (_ROOT / "cgroup.controllers").exists()


def _hierarchies() -> Iterator[Path]:
    if _is_unified():
        yield _ROOT
        return
    for child in _ROOT.iterdir():
        if child.is_dir() and not child.is_symlink():
            yield child


def _processes(name: str) -> set[int]:
    pids: set[int] = set()
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / name):
            with suppress(OSError):  # containerd removed it meanwhile: FileNotFoundError, or ENODEV of the kernel
                pids |= {int(line) for line in (Path(folder) / "cgroup.procs").read_text("utf-8").split()}
    return pids | {shim for pid in pids for shim in _shim_of(pid)}


def _shim_of(pid: int) -> Iterator[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        parent = int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[1])
        if b"containerd-shim" in Path(f"/proc/{parent}/cmdline").read_bytes():
            yield parent
