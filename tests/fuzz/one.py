"""`python -m fuzz.one TARGET SECONDS WORK FOUND`: one target under atheris (libFuzzer), guided by coverage.

Inputs that fail are written as WORK/crash-*, timeout-* or oom-*, those that reach new code into FOUND. WORK/rss gets
the memory at intervals, which distinguishes a leak from a corpus that grows.
"""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
import time
from importlib.machinery import PathFinder
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


def find_sources_first() -> None:
    """Import our packages with Python's own loader: atheris sees no coverage of what an editable install's loads."""
    root = Path(__file__).parents[2]
    sys.path[:0] = [str(root / folder) for folder in ("operator", "sidecar", "native", "proto")]
    sys.meta_path.insert(0, PathFinder)


def main() -> None:
    name, seconds, work, found = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    tempfile.tempdir = str(work)  # which others remove: libFuzzer ends the process on the spot
    find_sources_first()
    from fuzz.table import TARGETS

    target = TARGETS[name]
    with atheris.instrument_imports(include=list(target.instrument)):
        for module in target.instrument:
            importlib.import_module(module)
        (work / "files").mkdir()
        feed = target.open(work / "files")
        feed(b"\1")  # imports what its parser imports late, outside of an input's time
    logging.disable(logging.CRITICAL)  # refusals are logged, a million times
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={target.slow_s}",
        f"-rss_limit_mb={target.memory_mb}",
        f"-artifact_prefix={work}/",
        f"-max_len={LONGEST}",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(found), str(target.corpus)], watched(feed, work / "rss"))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
