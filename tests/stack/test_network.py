"""The relays of the tests themselves."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

from stack.network import Relay

from aegaeon_cli.demo.stack import free_port


async def dial_while_it_stops(turns: int) -> None:
    relay = Relay(free_port())
    await relay.start()
    dialling = [socket.socket() for _ in range(4)]
    for end in dialling:
        end.setblocking(False)
        end.connect_ex(("127.0.0.1", relay.port))
    for _ in range(turns):
        await asyncio.sleep(0)
    await relay.stop()
    for end in dialling:
        end.close()


async def test_a_relay_that_stops_while_it_is_dialled_leaves_no_connection_open() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for turns in range(16):
            await dial_while_it_stops(turns % 8)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
