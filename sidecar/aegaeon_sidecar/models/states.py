"""Detects changes of a file without reading it: compares the state of the descriptor that is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from aegaeon_sidecar.domain.errors import FilesMissingError, UnreadableError
from aegaeon_sidecar.models.documents import open_regular

Descriptors = dict[Path, int]

SETTLED_NS = 20_000_000
"""A younger file or folder may change again within the same tick of its file system's clock."""


@dataclass(frozen=True, slots=True)
class FileState:
    """Unchanged means unchanged bytes: the owner of a file can set `modified_ns`, but the kernel alone `changed_ns`.

    A write through a shared mapping on a tmpfs shows in neither.
    """

    device: int
    inode: int
    nbytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> Self:
        """The state from a stat of the file's path or descriptor."""
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    def change_to(self, now: FileState) -> str:
        """A description of the change of a file of this state; "" without a change."""
        if now == self:
            return ""
        if now.nbytes != self.nbytes:
            return f"has {now.nbytes} bytes, had {self.nbytes}"
        if (now.device, now.inode) != (self.device, self.inode):
            return "is another file than it was"
        return "was written to, or its attributes changed"


@contextmanager
def opened(paths: Iterable[Path]) -> Iterator[Descriptors]:
    """Open files, by path, for reading. Raises FilesMissingError, UnreadableError."""
    with ExitStack() as stack:
        files: Descriptors = {}
        for path in paths:
            files[path] = _open(path)
            stack.callback(os.close, files[path])
        yield files


def states_of(files: Descriptors) -> tuple[FileState, ...]:
    """The states of the files in the order in which they were opened. Raises UnreadableError."""
    return tuple(_state(path, descriptor) for path, descriptor in files.items())


def _state(path: Path, descriptor: int) -> FileState:
    try:
        return FileState.of(os.fstat(descriptor))
    except OSError as error:  # ESTALE: its server has forgotten it
        raise UnreadableError(f"{path}: {error.strerror}; check the disk and the mount") from error


def _open(path: Path) -> int:
    try:
        return open_regular(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FilesMissingError(f"{path}: missing; fetch the model again") from error
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read: {error.strerror}; check the disk and the mount") from error
