"""Folders of models that tenants name: inside the folder that the platform gives to models, links followed.

A tenant that may write among the models could otherwise place a link to another pod's files, or to keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


class OutsideError(Exception):
    """A folder, or a file in it, lies outside; the message says which and what to do."""


def check_within(directory: Path, root: str) -> None:
    """Raises OutsideError unless all of it lies below `root`, and OSError; an empty root is everywhere.

    A change between this check and the read is not detected: mount the folder read-only for tenants.
    """
    if not root:
        return
    top = _resolved(Path(root))
    for path in _read_from(directory):
        if not _resolved(path).is_relative_to(top):
            raise OutsideError(f"{path} leads out of {root}, where the pool's models are; copy the files there")


def _resolved(path: Path) -> Path:
    """The real path; not by Path.resolve(), whose RuntimeError for circular links is no OSError. Those are unreadable:
    ELOOP."""
    return Path(os.path.realpath(path))


def _read_from(directory: Path) -> Iterator[Path]:
    """The folder, what is in it, and what is in its own folders: no model is read from further down."""
    yield directory
    for path in directory.iterdir():
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from path.iterdir()
