"""How many engines a role should have: a pure step from one look at the pool to the next.

Out, one at a time, when requests wait or KV memory stays full; in, one at a time, when the rest had nothing to do for
long. A new engine needs time to come up and to take what waits: nothing is added meanwhile. From zero, at once for the
first request; to zero, when the whole pool answered nothing for long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aegaeon_operator.spec.kubernetes import Autoscaling

_FULL_FOR_S = 30.0  # KV memory must be full for so long: peaks pass


@dataclass(frozen=True, slots=True)
class Load:
    """One look at a role's engines. `asked` is how many there should be by now, `attached` how many serve.

    `open_requests` are open in the whole pool, `ended` have ended there: short ones pass between two looks.
    """

    asked: int
    attached: int
    oldest_wait_s: float
    kv_used: float  # 0 to 1
    sequences: int
    open_requests: int = 0
    ended: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered between two looks: since when it is so (seconds of the caller's clock), None: it is not."""

    full_since: float | None = None
    idle_since: float | None = None
    ended: int = 0
    coming: bool = False  # an engine is on its way
    came: float | None = None  # when the last one attached


def step(load: Load, low: int, high: int, knobs: Autoscaling, memory: Memory, now: float) -> tuple[int, Memory]:
    """How many engines to ask for, within [low, high], and what to remember."""
    memory = _remember(load, knobs, memory, now)
    asked = min(max(load.asked, low), high)
    if asked != load.asked:
        return asked, Memory()
    if asked == 0 and load.open_requests:
        return 1, Memory()
    if 0 < asked < high and load.attached >= asked and _short(load, knobs, memory, now):
        return asked + 1, Memory()
    if asked > low and memory.idle_since is not None and now - memory.idle_since >= knobs.idle:
        return asked - 1, replace(memory, idle_since=now)
    return asked, memory


def _short(load: Load, knobs: Autoscaling, memory: Memory, now: float) -> bool:
    settled = memory.came is None or now - memory.came >= knobs.queue_wait
    waits = settled and load.oldest_wait_s >= knobs.queue_wait
    return waits or (memory.full_since is not None and now - memory.full_since >= _FULL_FOR_S)


def _remember(load: Load, knobs: Autoscaling, memory: Memory, now: float) -> Memory:
    full = load.kv_used * 100 >= knobs.kv_usage
    # As many sequences as engines that would stay: each of those has little to do. None would stay: no request is open.
    unused = not load.open_requests and load.ended == memory.ended
    idle = unused if load.asked <= 1 else load.oldest_wait_s == 0 and load.sequences < load.asked and not full
    coming = load.attached < load.asked
    return Memory(
        full_since=(memory.full_since if memory.full_since is not None else now) if full else None,
        idle_since=(memory.idle_since if memory.idle_since is not None else now) if idle else None,
        ended=load.ended,
        coming=coming,
        came=now if memory.coming and not coming else memory.came,
    )
