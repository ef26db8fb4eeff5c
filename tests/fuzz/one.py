"""`python -m fuzz.one TARGET SECONDS WORK`: one target under atheris (libFuzzer), guided by coverage, in this process.

What it finds is written as WORK/crash-*, timeout-* or oom-*. WORK/rss gets the memory at intervals, by which a leak is
told from a corpus that grows.
"""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
import time
from pathlib import Path

import atheris
from fuzz.target import One

EVERY = 1 << 12  # executions between two looks at the memory
LONGEST = 4096  # bytes of an input


def watched(one: One, file: Path) -> One:
    """The same, and its memory on record."""
    done = 0

    def counted(data: bytes) -> None:
        nonlocal done
        one(data)
        done += 1
        if done % EVERY == 0:
            with file.open("a") as out:
                out.write(f"{time.monotonic()} {done} {_rss_bytes()}\n")

    return counted


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    name, seconds, work = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    tempfile.tempdir = str(work)  # which others remove: libFuzzer ends the process on the spot
    from fuzz.table import TARGETS

    target = TARGETS[name]
    with atheris.instrument_imports(include=list(target.instrument)):
        for module in target.instrument:
            importlib.import_module(module)
        opened = target.open()
        one = opened.__enter__()
        one(b"\1")  # imports what its parser imports late, outside of an input's time
    logging.disable(logging.CRITICAL)  # refusals are logged, a million times
    found = work / "corpus"
    found.mkdir(exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={target.slow_s}",
        f"-rss_limit_mb={target.memory_mb}",
        f"-artifact_prefix={work}/",
        f"-max_len={LONGEST}",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(found), str(target.corpus)], watched(one, work / "rss"))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
