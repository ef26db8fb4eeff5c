"""One model's folder in the disk tier: its lock, its marks, what it takes, and its end. A node's sidecars share it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aegaeon_sidecar.weights.image import try_lock

LOCK = ".lock"
COMPLETE = ".complete"
RESERVED = ".reserved"
_NAME = re.compile("[0-9a-f]{32}")  # of an entry; what else lies in the folder is not ours to count or remove


def entries(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return [path for path in found if _NAME.fullmatch(path.name) and path.is_dir()]


def evict(directory: Path) -> int:
    """Remove a model that no process fetches or may load from; returns the bytes freed, 0 when it is in use."""
    with locked(lock_file(directory)) as mine:
        if not mine:
            return 0
        nbytes = claimed_bytes(directory)
        (directory / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(directory)
        return nbytes


def is_idle(directory: Path) -> bool:
    """No process fetches it or may load from it, just now."""
    with locked(lock_file(directory)) as mine:
        return mine


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Holds the exclusive lock of a file; False when it is another's."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield try_lock(handle, fcntl.LOCK_EX)
    finally:
        os.close(handle)


def lock_file(directory: Path) -> Path:
    return directory.with_suffix(LOCK)


def is_complete(directory: Path) -> bool:
    return (directory / COMPLETE).exists()


def claimed_bytes(directory: Path) -> int:
    """The larger of its reservation and what is on disk."""
    try:
        reserved = int((directory / RESERVED).read_text())
    except (FileNotFoundError, ValueError):
        reserved = 0
    return max(reserved, stored_bytes(directory))


def stored_bytes(directory: Path) -> int:
    """What its files have on disk; 0 when it is gone."""
    total = 0
    with suppress(FileNotFoundError):  # it is evicted just then
        for path in directory.iterdir():
            with suppress(FileNotFoundError):  # a part becomes whole just then
                total += path.stat().st_size
    return total
