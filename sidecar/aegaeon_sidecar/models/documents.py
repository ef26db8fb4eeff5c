"""Reads whole files of a model within bounds: no read hangs, none exhausts memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from aegaeon_sidecar.domain.errors import ModelError

MOST_CONFIG_BYTES = 4 << 20  # the largest known have 100 KB
MOST_INDEX_BYTES = 64 << 20  # the largest known have 15 MB


def open_regular(path: Path) -> int:
    """A descriptor for reading, of a regular file alone. Raises ModelError and OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise ModelError(f"{path}: is not a regular file")


def read_document(path: Path, most_bytes: int) -> bytes:
    """The whole file. Raises ModelError where that is too much, and OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ModelError(f"{path}: has more than {most_bytes} bytes, the limit for it")
    return content
