"""One model's folder in the disk tier: its lock, its markers, its size, and its removal. A node's sidecars share it."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aegaeon_native.leases import LOCK_SUFFIX

_COMPLETE = ".complete"
_RESERVED = ".reserved"
_SOURCE = ".source"
_NAME = re.compile("[0-9a-f]{32}")  # of such a folder; what else lies beside them is not ours to count or remove


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """See store.Entry. Its lock lies beside it, and ends with it."""

    directory: Path

    @property
    def lock(self) -> Path:
        """See Entry."""
        return self.directory.with_suffix(LOCK_SUFFIX)

    def rank(self) -> tuple[bool, int]:
        """See Entry."""
        return self.is_complete(), self.directory.stat().st_mtime_ns

    def claimed_bytes(self) -> int:
        """See Entry: the larger of its reservation and what is on disk."""
        try:
            reserved = int((self.directory / _RESERVED).read_text())
        except (FileNotFoundError, ValueError):
            reserved = 0
        return max(reserved, self.stored_bytes())

    def stored_bytes(self) -> int:
        """Bytes of its files on disk; 0 when it does not exist."""
        total = 0
        with suppress(FileNotFoundError):  # it is evicted just then
            for path in self.directory.iterdir():
                with suppress(FileNotFoundError):  # a part becomes whole just then
                    total += path.stat().st_size
        return total

    def remove(self) -> None:
        """See Entry."""
        self.unpublish()
        shutil.rmtree(self.directory)
        self.lock.unlink(missing_ok=True)

    def reserve(self, nbytes: int) -> None:
        """Reserve this part of the budget; nothing is written beyond it."""
        self.directory.mkdir(exist_ok=True)
        (self.directory / _RESERVED).write_text(str(nbytes))

    def publish(self) -> None:
        """Sidecars may load from it; what it has is what it takes."""
        (self.directory / _RESERVED).write_text("0")
        (self.directory / _COMPLETE).touch()

    def unpublish(self) -> None:
        """Mark the folder incomplete: no sidecar loads from it, the next fetch resumes it. Caller holds its lock."""
        (self.directory / _COMPLETE).unlink(missing_ok=True)

    def is_complete(self) -> bool:
        """True when it may be loaded from."""
        return (self.directory / _COMPLETE).exists()

    def touch(self) -> None:
        """Mark it as used."""
        with suppress(FileNotFoundError):  # it is evicted just then
            os.utime(self.directory)

    def is_idle(self, for_s: float) -> bool:
        """True when it was not used for `for_s` seconds."""
        return not 0 <= time.time() - self.directory.stat().st_mtime < for_s

    @property
    def source(self) -> str:
        """The source's address, for people; "" while it is not known."""
        path = self.directory / _SOURCE
        return path.read_text().strip() if path.exists() else ""

    def note_source(self, address: str) -> None:
        """Record the address that `source` returns."""
        (self.directory / _SOURCE).write_text(address + "\n")

    def end_lock(self) -> None:
        """Remove the lock of a folder without files. The caller holds the lock exclusively."""
        if not self.directory.exists():
            self.lock.unlink(missing_ok=True)


def model_folders(folder: Path) -> list[ModelFolder]:
    """The model folders of a disk tier."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return [ModelFolder(path) for path in paths if _NAME.fullmatch(path.name) and path.is_dir()]
