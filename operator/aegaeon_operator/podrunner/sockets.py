"""Folders with short paths for unix sockets, whose paths are limited to 107 bytes.

Each folder is private (0700), has a lock that its owner holds, and is removed by its owner. Creating a folder
garbage-collects those of killed owners.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

from aegaeon_native.leases import hold, is_held
from aegaeon_operator.errors import RunnerError

_PREFIX = "aegaeon-sockets-"
_RANDOM_BYTES = 8  # that mkdtemp adds
_LOCK = "lock"
_FOLDER_BYTES = 64  # of the 107; the rest is for the sockets' names


class SocketFolder:
    """The owner of a folder, from `create` to `remove` or to the end of a `with` statement."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._locks = [lock]

    @classmethod
    def create(cls) -> SocketFolder:
        """Create a folder below the first suitable folder of this machine. Raises RunnerError without one."""
        base = _short_folder()
        _sweep(base)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        return cls(path, claim(path))

    def remove(self) -> None:
        """Remove the folder and release its lock. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        while self._locks:
            os.close(self._locks.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def claim(folder: Path) -> int:
    """Lock a folder for this process. The file is locked before it is renamed, so that no sweep sees it unlocked."""
    draft = folder / f"{_LOCK}.new"
    lock = hold(draft)
    draft.replace(folder / _LOCK)
    return lock


def is_claimed(folder: Path) -> bool:
    """Return whether a live process holds the folder's lock."""
    return is_held(folder / _LOCK)


def is_dead(folder: Path) -> bool:
    """Return whether a folder has a lock that no live process holds."""
    return (folder / _LOCK).exists() and not is_claimed(folder)


def _short_folder() -> Path:
    places = [place for place in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp") if place]
    for place in places:
        if os.access(place, os.W_OK) and len(os.fsencode(f"{place}/{_PREFIX}")) + _RANDOM_BYTES <= _FOLDER_BYTES:
            return Path(place)
    raise RunnerError(
        f"no folder for unix sockets: none of {', '.join(places)} is writable and has a short enough path; "
        "set TMPDIR to a folder of your own with a short path"
    )


def _sweep(base: Path) -> None:
    for path in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # swept by another process meanwhile
            if path.lstat().st_uid == os.getuid() and is_dead(path):
                shutil.rmtree(path, ignore_errors=True)
