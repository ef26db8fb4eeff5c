"""`python -m attacks.watched_gateway --config FILE ...`: the gateway, each long callback of its event loop on record.

Appends a line of JSON to FILE's folder, `gateway.loop`, for each callback that took LONG_S or more of the loop's
thread: CPU time, which other processes cannot lengthen, and wall time, which includes waits for the interpreter's lock.
After _MOST_LINES, only for those that break the bar.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from attacks.bars import CALLBACK_S

LONG_S = 0.005
_MOST_LINES = 20_000  # of one process: an attack may not fill the disk


def record_into(file: Path) -> None:
    """From here on, for every loop of this process."""
    run = asyncio.events.Handle._run
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    left = _MOST_LINES

    def measured(handle: Any) -> None:
        nonlocal left
        cpu, wall = time.thread_time(), time.monotonic()
        run(handle)
        took_cpu, took_wall = time.thread_time() - cpu, time.monotonic() - wall
        if took_cpu >= CALLBACK_S or (left > 0 and (took_cpu >= LONG_S or took_wall >= LONG_S)):
            left -= 1
            line = {"at": wall, "cpu_s": took_cpu, "wall_s": took_wall, "name": _name(handle)}
            os.write(out, json.dumps(line).encode() + b"\n")

    asyncio.events.Handle._run = measured  # type: ignore[method-assign]  # private, and measured only here


def _name(handle: Any) -> str:
    """What the callback was: of a task's step, the coroutine and where it waits."""
    callback = handle._callback
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return str(getattr(callback, "__qualname__", callback))[:200]
    names, coroutine = [], task.get_coro()
    while coroutine is not None and len(names) < 12:
        names.append(getattr(coroutine, "__qualname__", type(coroutine).__name__))
        coroutine = getattr(coroutine, "cr_await", None)
    return " > ".join(names)[:400]


def main() -> int:
    from aegaeon_gateway.__main__ import main as gateway

    record_into(Path(sys.argv[sys.argv.index("--config") + 1]).with_name("gateway.loop"))
    return gateway()


if __name__ == "__main__":
    sys.exit(main())
