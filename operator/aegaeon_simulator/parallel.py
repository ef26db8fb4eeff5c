"""Processes that simulate side by side, and end with the one that asked them to, however that ends."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from threading import Thread


def cores() -> int:
    """The number of usable cores."""
    return len(os.sched_getaffinity(0))


def processes(count: int) -> ProcessPoolExecutor:
    """Return a pool of this many worker processes, which import the code again."""
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    """The executor's own processes wait for work for ever when their parent is killed."""
    Thread(target=_end_after, args=(parent_process(),), daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
