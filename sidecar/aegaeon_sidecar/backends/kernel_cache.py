"""The folder of compiled Triton kernels: on the node, so that only its first engine compiles them."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

VARIABLE = "TRITON_CACHE_DIR"


def keep_kernels(segments: Path) -> None:
    """Set the folder for this process, from its first kernel on, unless its environment names a folder already.

    In a folder of this user alone in that of segments, which outlives process, container and pod: kernels are loaded
    and run from there. Triton names them by its own version, their source and the device, so images share a folder.
    Otherwise they stay where Triton puts them, which in a container is lost with it.
    """
    if VARIABLE in os.environ:
        return
    folder = segments / f"triton-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        reason = _why_not(folder)
    except OSError as error:
        reason = str(error)
    if reason:
        log.warning("compiled kernels are not kept in %s: %s", folder, reason)
    else:
        os.environ[VARIABLE] = str(folder)


def _why_not(folder: Path) -> str:
    """Empty: its kernels are ours, and may be run. Raises OSError."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        return "it is not a folder of this user alone; remove it"
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return "its file system is mounted noexec, and a part of each kernel is a library"
    return ""
