"""What clusters change on the machine itself, written down so that the last one to end puts it back.

kubelet sets kernel parameters, `ip netns` mounts a folder on itself, and nodes mount their own folders over new ones.
Clusters that live side by side share these, so there is one record for all of them.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from e2e.cluster.processes import run

# Where `ip netns` keeps the namespaces: mounted on itself by the first `ip netns add` since the machine started.
NAMESPACES = "/run/netns"
# What kubelet sets at its start.
SYSCTLS = (
    *("kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
    *("vm/overcommit_memory", "vm/panic_on_oom"),
)


@dataclass(slots=True)
class _Record:
    """As the machine was before the first of these clusters, and what was made since."""

    clusters: list[int] = field(default_factory=list)
    sysctls: dict[str, str] = field(default_factory=dict)
    mounts: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Machine:
    """`root` is / but in tests."""

    root: Path = Path("/")

    def claim(self, cluster: int, folders: Iterable[str]) -> None:
        """Before a cluster starts: write down what is there, and make these folders where they are missing."""
        with self._locked():
            record = self._read()
            if not record.clusters:
                record.sysctls = {name: self._sysctl(name).read_text("utf-8").strip() for name in SYSCTLS}
                record.mounts = [] if self._is_mounted(NAMESPACES) else [NAMESPACES]
            record.clusters = sorted({*record.clusters, cluster})
            for folder in folders:
                record.folders += self._make(folder)
            self._file.write_text(json.dumps(asdict(record)), "utf-8")

    def release(self, cluster: int) -> None:
        """After a cluster ended: the last one restores all of it. What other processes use meanwhile stays."""
        with self._locked():
            record = self._read()
            if cluster not in record.clusters:
                return
            record.clusters.remove(cluster)
            if record.clusters:
                self._file.write_text(json.dumps(asdict(record)), "utf-8")
                return
            self._restore(record)
            self._file.unlink()

    def _restore(self, record: _Record) -> None:
        for name, value in record.sysctls.items():
            if self._sysctl(name).read_text("utf-8").strip() != value:
                self._sysctl(name).write_text(value, "utf-8")
        for mount in record.mounts:
            if self._is_mounted(mount) and not any(self._at(mount).iterdir()):
                run("umount", mount)
        for folder in map(self._at, reversed(record.folders)):
            with suppress(OSError):  # it has something in it, or is gone
                folder.rmdir()

    def _make(self, folder: str) -> Iterator[str]:
        """Those that were missing, outermost first."""
        path = Path(folder)
        for one in (*reversed(path.parents), path):
            if not self._at(str(one)).exists():
                self._at(str(one)).mkdir()
                yield str(one)

    def _is_mounted(self, folder: str) -> bool:
        """As the kernel says: of a folder mounted on itself, its number of device does not tell."""
        mounts = self._at("/proc/self/mountinfo").read_text("utf-8").splitlines()
        return folder in {mount.split()[4] for mount in mounts}

    def _read(self) -> _Record:
        return _Record(**json.loads(self._file.read_text("utf-8"))) if self._file.exists() else _Record()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The folder of the record is locked: a file for it would be left behind."""
        folder = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    @property
    def _file(self) -> Path:
        return self._at("/var/lib/aegaeon-e2e-machine.json")

    def _sysctl(self, name: str) -> Path:
        return self._at(f"/proc/sys/{name}")

    def _at(self, path: str) -> Path:
        return self.root / path.removeprefix("/")
