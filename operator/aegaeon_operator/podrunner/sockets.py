"""Short folders for unix sockets: their paths may have 107 bytes, whatever TMPDIR, the user and the pool are called.

Each folder is private (0700), holds a lock for as long as its owner lives, and is removed by its owner. When a folder
is made, those of owners that were killed are removed.
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
_FOLDER_BYTES = 64  # of the 107; the rest is for the names of sockets


class SocketFolder:
    """Owns one folder, from `create` to `remove` or to the end of a `with`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._locks = [lock]

    @classmethod
    def create(cls) -> SocketFolder:
        """A fresh folder below the first short place of this machine. Raises RunnerError when there is none."""
        base = _short_place()
        _sweep(base)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        return cls(path, claim(path))

    def remove(self) -> None:
        """Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        while self._locks:
            os.close(self._locks.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def claim(folder: Path) -> int:
    """Lock the folder for this process. The file is locked before it has its name: a sweep never sees it unlocked."""
    draft = folder / f"{_LOCK}.new"
    lock = hold(draft)
    draft.replace(folder / _LOCK)
    return lock


def is_claimed(folder: Path) -> bool:
    """Whether a living process has claimed the folder."""
    return is_held(folder / _LOCK)


def is_dead(folder: Path) -> bool:
    """Whether the folder was claimed once, and its owner lives no longer."""
    return (folder / _LOCK).exists() and not is_claimed(folder)


def _short_place() -> Path:
    places = [place for place in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp") if place]
    for place in places:
        if os.access(place, os.W_OK) and len(os.fsencode(f"{place}/{_PREFIX}")) + _RANDOM_BYTES <= _FOLDER_BYTES:
            return Path(place)
    raise RunnerError(
        f"no folder for unix sockets: none of {', '.join(places)} can be written and is short enough; "
        "set TMPDIR to a short one of your own"
    )


def _sweep(base: Path) -> None:
    for path in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # swept by another process meanwhile
            if path.lstat().st_uid == os.getuid() and is_dead(path):
                shutil.rmtree(path, ignore_errors=True)
