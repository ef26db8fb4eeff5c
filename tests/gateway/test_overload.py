"""A scheduler that is late: what it has no time for waits in the gateway, for a moment, and then gets 503."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from aegaeon_gateway.errors import UnavailableError
from aegaeon_gateway.generation.generation import Generation
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.metrics import Metrics
from aegaeon_gateway.models.catalog import Catalog
from aegaeon_gateway.request.prompt import Prompt
from aegaeon_gateway.rpc import outbox as module
from aegaeon_gateway.rpc.link import SchedulerLink
from aegaeon_gateway.rpc.open_requests import OpenRequests
from aegaeon_gateway.rpc.outbox import Outbox
from aegaeon_gateway.tenancy import Tenants, TenantsFile
from aegaeon_gateway.text.detokenize import Vocabulary
from aegaeon_gateway.workers.wire import Options
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1.model_pb2 import Limits, ModelSpec, Sampling

VOCABULARY = Vocabulary(Tokenizer(WordLevel({"a": 0}, unk_token="a")))


def generation_of(name: str, tokens: int = 1) -> Generation:
    prompt, limits = Prompt.of(range(tokens)), [Limits(max_tokens=8)]
    request = Request(name, ModelSpec(name="m"), VOCABULARY, Options(n=1), Sampling(), [prompt], limits, [""], 0.0)
    return Generation(request, 0, Metrics().of("m"), lambda: None, lambda: None)


class Line:
    """A link that is attached, and what it sends."""

    def __init__(self) -> None:
        self.open = OpenRequests()
        catalog, tenants = Catalog(on_change=lambda models: None), Tenants(TenantsFile(None), by_scheduler=False)
        self.link = SchedulerLink(
            name="gw", targets=("",), tls=None, sink="", hold_s=1.0, open_=self.open, catalog=catalog, tenants=tenants,
            metrics=Metrics(),
        )  # fmt: skip
        self.outbox = self.link._outbox = Outbox(self.open)
        self._messages: AsyncIterator[pb.GatewayMessage] = self.outbox.drain()

    def submit(self, *names: str, tokens: int = 1) -> list[Generation]:
        made = [generation_of(name, tokens) for name in names]
        for generation in made:
            self.link.open(generation)
        return made

    def taken(self, retry_after_s: float = 1.0) -> None:
        self.link._on_reply(pb.GatewayReply(taken=pb.Taken(retry_after_s=retry_after_s)))

    async def sent(self) -> list[str]:
        """By the next message."""
        message = await anext(self._messages)
        return [part.submit.request or f"cancel {part.cancel.request}" for part in message.more or (message,)]

    async def rest(self) -> list[pb.GatewayMessage]:
        """What the stream would carry before it ends."""
        self.outbox.close()
        return [message async for message in self._messages]


@pytest.fixture
def line() -> Line:
    return Line()


async def test_what_waits_while_a_message_is_handled_shares_the_next(line: Line) -> None:
    line.taken()
    line.submit("a")
    assert await line.sent() == ["a"]
    b, _ = line.submit("b", "c")
    line.link.cancel(b, [])
    line.taken()
    assert await line.sent() == ["b", "c", "cancel b"]


async def test_nothing_is_sent_before_the_last_message_is_handled(line: Line) -> None:
    line.taken()
    line.submit("a")
    assert await line.sent() == ["a"]
    line.submit("b")
    assert await line.rest() == []


async def test_a_scheduler_of_the_release_before_receives_messages_of_one_body(line: Line) -> None:
    line.submit("a", "b")
    messages = await line.rest()
    assert [message.submit.request for message in messages] == ["a", "b"]


async def test_a_message_is_bounded_in_number_and_size(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH", 3)
    monkeypatch.setattr(module, "_BATCH_TOKENS", 10)
    line.taken()
    line.submit("a", "b", "c", "d")
    line.submit("long", "longer", tokens=9)
    for expected in (["a", "b", "c"], ["d", "long"], ["longer"]):
        assert await line.sent() == expected
        line.taken()


async def test_what_waits_too_long_gets_503_with_retry_after_and_is_never_sent(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BATCH", 1)
    monkeypatch.setattr(module, "LONGEST_S", 0.0)
    line.taken()
    (first,) = line.submit("first")
    assert await line.sent() == ["first"]
    following, moved, left = line.submit("next", "moved", "left")
    line.outbox.submit(moved, moved.choices)  # it was lost: a new epoch begins
    assert left.error is None  # a silent scheduler may be about to be replaced
    line.taken(retry_after_s=7.0)
    assert isinstance(left.error, UnavailableError)
    assert (left.error.status, left.error.code, left.error.retry_after_s) == (503, "overloaded", 7.0)
    assert [each.error for each in (first, following, moved)] == [None] * 3
    line.link.close(first)
    for expected in (["next"], ["moved"], ["cancel first"]):
        assert await line.sent() == expected
        line.taken()
    line.link.close(left)  # its reader has its answer
    assert await line.rest() == []


async def test_a_refused_request_is_not_cancelled_and_a_moved_one_is(line: Line) -> None:
    refused, moved = line.submit("refused", "moved")
    line.taken()
    assert await line.sent() == ["refused", "moved"]
    moved.choices[0].epoch = 2  # it was with an engine, which may have it still
    for generation in (refused, moved):
        code = pb.REJECT_CODE_ENGINE
        line.link._on_reply(pb.GatewayReply(rejected=pb.Rejected(request=generation.id, code=code)))
        assert generation.error is not None
        line.link.close(generation)
    line.taken()
    assert await line.sent() == ["cancel moved"]
    line.taken()
    assert await line.rest() == []
