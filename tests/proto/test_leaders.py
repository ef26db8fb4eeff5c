"""Which scheduler is followed: the one that leads, in the highest term that was heard of."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from aegaeon_proto import leaders
from aegaeon_proto.leaders import Leaders, NoLeaderError
from aegaeon_proto.servers import add_port, make_server
from aegaeon_proto.v1 import leadership_pb2 as pb
from aegaeon_proto.v1 import leadership_pb2_grpc

PATIENCE_S = 60  # against what hangs


class Scheduler(leadership_pb2_grpc.LeadershipServicer):
    """Answers with the configured reply."""

    def __init__(self, term: int, leads: bool = True) -> None:
        self.term = term
        self.leads = leads
        self.speaks = asyncio.Event()
        self.speaks.set()

    async def Ask(self, request: Any, context: Any) -> pb.LeaderReply:
        await self.speaks.wait()
        return pb.LeaderReply(leads=self.leads, term=self.term)


Serving = Callable[..., Any]


@pytest.fixture
async def serving() -> AsyncIterator[Serving]:
    async with AsyncExitStack() as exits:

        async def start(scheduler: Scheduler | None) -> str:
            server = make_server()
            if scheduler:
                leadership_pb2_grpc.add_LeadershipServicer_to_server(scheduler, server)
            port = add_port(server, "127.0.0.1:0", None)
            await server.start()
            exits.push_async_callback(server.stop, 0)
            return f"127.0.0.1:{port}"

        yield start


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "ASK_EVERY_S", 0.05)


@asynccontextmanager
async def patience() -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE_S):
        yield


async def test_the_leader_is_found_among_standbys_and_unreachable_targets(serving: Serving) -> None:
    standby, leader = await serving(Scheduler(0, leads=False)), await serving(Scheduler(7))
    targets = Leaders(("127.0.0.1:1", standby, leader), None)
    async with patience(), targets.leader() as found:
        assert (found.target, found.term, targets.seen) == (leader, 7, 7)


async def test_without_a_leader_every_target_has_its_reason(serving: Serving) -> None:
    standby = await serving(Scheduler(0, leads=False))
    async with patience():
        with pytest.raises(NoLeaderError, match=rf"{standby} is a standby"):
            async with Leaders((standby,), None).leader():
                pass


async def test_a_leader_of_an_older_term_is_refused(serving: Serving) -> None:
    old, new = await serving(Scheduler(7)), await serving(Scheduler(8))
    targets = Leaders((old,), None)
    targets.seen = 8
    async with patience():
        with pytest.raises(NoLeaderError, match="term 7, which has ended: term 8 has begun"):
            async with targets.leader():
                pass
        both = Leaders((old, new), None)
        both.seen = 8
        async with both.leader() as found:
            assert found.target == new


async def test_an_attached_client_moves_to_the_leader_of_a_higher_term(serving: Serving) -> None:
    first, second = Scheduler(7), Scheduler(0, leads=False)
    targets = Leaders((await serving(first), await serving(second)), None)
    async with patience(), targets.leader() as found:
        talk = asyncio.create_task(targets.follow(found, forever()))
        second.term, second.leads = 8, True
        with pytest.raises(NoLeaderError, match=r"term 8 (began|has begun)"):  # of either question
            await talk


async def test_an_attached_client_leaves_a_scheduler_whose_event_loop_hangs(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaders, "ANSWER_S", 0.2)
    scheduler = Scheduler(7)
    targets = Leaders((await serving(scheduler),), None)
    async with patience(), targets.leader() as found:
        scheduler.speaks.clear()
        with pytest.raises(NoLeaderError, match="is silent"):
            await targets.follow(found, forever())
        scheduler.speaks.set()


async def test_a_call_to_the_leader_ends_with_its_result(serving: Serving) -> None:
    targets = Leaders((await serving(Scheduler(7)),), None)
    async with patience(), targets.leader() as found:
        await targets.follow(found, asyncio.sleep(0))


async def test_a_scheduler_without_a_lease_or_of_a_version_without_terms_is_taken_in_any_case(serving: Serving) -> None:
    for scheduler in (Scheduler(0), None):
        targets = Leaders((await serving(scheduler),), None)
        targets.seen = 8
        async with patience(), targets.leader() as found:
            assert found.term == 0


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_leader_is_found_by_name_while_dns_is_unavailable(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = (await serving(Scheduler(7))).rpartition(":")[2]
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port)))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    targets = Leaders((f"scheduler.invalid:{port}",), None)  # which gRPC's own resolver does not find
    async with patience():
        while True:
            try:
                async with targets.leader() as found:
                    assert found.term == 7
                    return
            except NoLeaderError:  # the first attempt may come before the answer
                await asyncio.sleep(0)
