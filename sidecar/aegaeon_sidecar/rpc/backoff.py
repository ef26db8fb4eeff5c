"""Retry backoff: short at first, bounded, with jitter so that sidecars do not synchronise."""

from __future__ import annotations

import asyncio
import random

FIRST_S = 0.05
MOST_S = 1.0
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
)


class Backoff:
    """Doubles from FIRST_S to MOST_S; make a new one after a success."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    async def pause(self) -> None:
        await asyncio.sleep(self._next_s * random.uniform(0.5, 1.0))
        self._next_s = min(self._next_s * 2, MOST_S)
