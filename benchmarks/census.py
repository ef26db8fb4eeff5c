"""What a process holds of the machine, read from /proc, and what two readings of several processes differ in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Row

SLAB_FILES = ("/memfd:", "/dev/shm/")  # their mappings come and go with models and KV: limited, not compared


@dataclass(frozen=True, slots=True)
class Holdings:
    """Counts, and the process's own memory, without files and slabs. `mappings` are those that are not of slabs."""

    files: int
    threads: int
    mappings: int
    slab_mappings: int
    own_mib: float


@dataclass(frozen=True, slots=True)
class Slack:
    """How much more a process may hold after the traffic than before. The reasons are the defaults' own.

    files: keep-alive connections and gRPC's own. threads: pools of asyncio and gRPC fill up late. mappings: a thread
    has a stack and its guard, and malloc an arena for it. own_mib: malloc's fragments and caches with bounds;
    what is lost per request would show: thousands of requests of some 10 kB are tens of MiB.
    """

    files: int = 4
    threads: int = 8
    mappings: int = 48
    own_mib: float = 16.0


def holdings(pid: int) -> Holdings:
    """Of the process, now. Raises FileNotFoundError when it is gone."""
    process = Path(f"/proc/{pid}")
    lines = (process / "maps").read_text().splitlines()
    slabs = sum(any(name in line for name in SLAB_FILES) for line in lines)
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return Holdings(
        files=len(list((process / "fd").iterdir())),
        threads=len(list((process / "task").iterdir())),
        mappings=len(lines) - slabs,
        slab_mappings=slabs,
        own_mib=int(status["RssAnon"].split()[0]) / 1024,
    )


def growth(before: Mapping[str, Holdings], after: Mapping[str, Holdings], slack: Slack) -> list[Row]:
    """A row per process and kind of thing: what it holds after the traffic, beside what it held before plus slack."""
    rows = []
    for name, was in before.items():
        now = after[name]
        for what, unit in (("files", "files"), ("threads", "threads"), ("mappings", "mappings")):
            limit = getattr(was, what) + getattr(slack, what)
            rows.append(Row(f"{name}: {what} ({getattr(was, what)} before)", getattr(now, what), unit, limit, "<="))
        grown = now.own_mib - was.own_mib
        rows.append(Row(f"{name}: growth of its own memory", grown, "MiB", slack.own_mib, "<="))
    return rows
