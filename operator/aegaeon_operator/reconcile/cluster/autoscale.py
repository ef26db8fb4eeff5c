"""The number of engines of a role: a pure step per observation of the pool.

It scales out by one when requests wait or KV memory stays full, and in by one when the remaining engines were idle for
`idle`. While a new engine starts and takes the waiting requests, no other is added. It scales from zero at the first
request, and to zero when the whole pool was idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aegaeon_operator.spec.kubernetes import Autoscaling

_FULL_FOR_S = 30.0  # KV memory must stay full for this time; shorter peaks do not count


@dataclass(frozen=True, slots=True)
class Load:
    """An observation of a role's engines. `desired`: current target; `attached`: engines that serve.

    `open_requests`, `ended`: in the whole pool; the latter shows requests that began and ended between observations.
    """

    desired: int
    attached: int
    oldest_wait_s: float
    kv_used: float  # 0 to 1
    sequences: int
    open_requests: int = 0
    ended: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """State between observations; times since which it holds, in seconds of the caller's clock; None: it does not."""

    full_since: float | None = None
    idle_since: float | None = None
    ended: int = 0
    coming: bool = False  # an engine is starting
    came: float | None = None  # when the last engine attached


def step(load: Load, low: int, high: int, knobs: Autoscaling, memory: Memory, now: float) -> tuple[int, Memory]:
    """Return the number of engines, within [low, high], and the state for the next step."""
    memory = _remember(load, knobs, memory, now)
    desired = min(max(load.desired, low), high)
    if desired != load.desired:
        return desired, Memory()
    if desired == 0 and load.open_requests:
        return 1, Memory()
    if 0 < desired < high and load.attached >= desired and _short(load, knobs, memory, now):
        return desired + 1, Memory()
    if desired > low and memory.idle_since is not None and now - memory.idle_since >= knobs.idle:
        return desired - 1, replace(memory, idle_since=now)
    return desired, memory


def _short(load: Load, knobs: Autoscaling, memory: Memory, now: float) -> bool:
    settled = memory.came is None or now - memory.came >= knobs.queue_wait
    waits = settled and load.oldest_wait_s >= knobs.queue_wait
    return waits or (memory.full_since is not None and now - memory.full_since >= _FULL_FOR_S)


def _remember(load: Load, knobs: Autoscaling, memory: Memory, now: float) -> Memory:
    full = load.kv_used * 100 >= knobs.kv_usage
    # As many sequences as engines that would stay: each of those has little to do. None would stay: no request is open.
    unused = not load.open_requests and load.ended == memory.ended
    idle = unused if load.desired <= 1 else load.oldest_wait_s == 0 and load.sequences < load.desired and not full
    coming = load.attached < load.desired
    return Memory(
        full_since=(memory.full_since if memory.full_since is not None else now) if full else None,
        idle_since=(memory.idle_since if memory.idle_since is not None else now) if idle else None,
        ended=load.ended,
        coming=coming,
        came=now if memory.coming and not coming else memory.came,
    )
