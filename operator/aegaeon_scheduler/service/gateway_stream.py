"""One stream of one gateway: what waits to be written to it, and what it says of itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aegaeon_proto.v1 import gateway_pb2
from aegaeon_scheduler.service.outbox import Outbox
from aegaeon_scheduler.service.sequences import Origin

# Replies that may wait for one gateway: the loss of an engine answers all its open requests at once.
_OUTBOX_LIMIT = 65536
# Replies of one message: the loop writes one to each gateway in two passes.
_BATCH = 64


class GatewayStream:
    """One stream of one gateway."""

    def __init__(self, origin: Origin, batches: bool) -> None:
        self.origin = origin
        self._batch = _BATCH if batches else 1
        self.outbox: Outbox[gateway_pb2.GatewayReply] = Outbox(_OUTBOX_LIMIT)
        self.timer: asyncio.TimerHandle | None = None
        self.redis_away = ""

    async def messages(self) -> AsyncIterator[gateway_pb2.GatewayReply]:
        """All replies, as the messages that they share."""
        async for batch in self.outbox.batches(self._batch):
            yield batch[0] if len(batch) == 1 else gateway_pb2.GatewayReply(more=batch)

    def end(self) -> None:
        """Close the stream, and wait for nothing more."""
        self.outbox.close()
        if self.timer is not None:
            self.timer.cancel()
