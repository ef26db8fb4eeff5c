"""Graceful shutdown of a sidecar: the scheduler is notified, its sequences end or move within a bounded time."""

from __future__ import annotations

import asyncio
import logging

from aegaeon_sidecar.engine.engine import Engine
from aegaeon_sidecar.rpc.server import Attachment

log = logging.getLogger(__name__)

_LOOK_S = 0.05
_FAREWELL_S = 0.5  # for the scheduler to read what is written and end the stream


async def drain(engine: Engine, attachment: Attachment, drain_s: float, hurry: asyncio.Event) -> None:
    """Wait until no sequence is held any more, up to `drain_s`, or until `hurry`; then the stream ends.

    Remaining sequences are lost with the process: their gateways submit them again, and another engine continues them.
    """
    attachment.drain()
    try:
        async with asyncio.timeout(drain_s):
            while engine.holds and not hurry.is_set():
                await _either(hurry, _LOOK_S)
    except TimeoutError:
        log.info("%d sequences did not end or move within %g s; they continue on other engines", engine.holds, drain_s)
    await attachment.leave(_FAREWELL_S)


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, or for `seconds`."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait([waiting], timeout=seconds)
    waiting.cancel()
