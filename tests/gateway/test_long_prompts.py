"""What a request with a long prompt, or an answer that repeats it, costs the gateway's loop and memory."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from aegaeon_gateway.generation.generation import Generation
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.metrics import Metrics
from aegaeon_gateway.models.catalog import Catalog
from aegaeon_gateway.request.prompt import Prompt
from aegaeon_gateway.rpc.link import SchedulerLink
from aegaeon_gateway.rpc.open_requests import OpenRequests
from aegaeon_gateway.rpc.outbox import Outbox
from aegaeon_gateway.tenancy import Tenants, TenantsFile
from aegaeon_gateway.text.detokenize import Vocabulary
from aegaeon_gateway.workers.wire import Options
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1.model_pb2 import Limits, ModelSpec, Sampling

VOCABULARY = Vocabulary(Tokenizer(WordLevel({"a": 0}, unk_token="a")))


def _unnoticed() -> None:
    """No answer reads it."""


def generation_of(prompt: Prompt, n: int = 2) -> Generation:
    options = Options(n=n, stream=True)
    limits = [Limits(max_tokens=8)]
    request = Request("r", ModelSpec(name="m"), VOCABULARY, options, Sampling(seed=3), [prompt], limits, [""], 0.0)
    return Generation(request, 0, Metrics().of("m"), _unnoticed, _unnoticed)


def outbox_of(generation: Generation) -> Outbox:
    open_ = OpenRequests()
    open_.add(generation)
    return Outbox(open_)


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_a_packed_prompt_is_what_protobuf_makes_of_its_ids(ids: list[int]) -> None:
    assert list(Prompt.of(ids).ids) == ids
    generation = generation_of(Prompt.of(ids))
    message = pb.GatewayMessage()
    generation.submit(generation.choices, 2.5, message)
    choices = [pb.Choice(choice=0, epoch=1), pb.Choice(choice=1, epoch=1)]
    assert message.submit == pb.Submit(
        request="r", model="m", prompt=ids, choices=choices, sampling=Sampling(seed=3), limits=Limits(max_tokens=8),
        age_s=2.5,
    )  # fmt: skip


@given(st.binary(max_size=64))
def test_packed_bytes_of_any_content_decode_to_a_prompt_alone(data: bytes) -> None:
    try:
        submit = pb.Submit.FromString(Prompt(1, data).field())
    except DecodeError:
        return
    submit.ClearField("prompt")
    assert submit == pb.Submit()


def test_a_prompt_of_a_million_tokens_is_submitted_in_less_than_half_the_time_of_a_list() -> None:
    ids = [number % 150_000 for number in range(1 << 20)]
    prompt = Prompt.of(ids)
    generation = generation_of(prompt)

    def cost(work: Any) -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    packed = min(cost(lambda: generation.submit(generation.choices, 0.0, pb.GatewayMessage())) for _ in range(5))
    listed = min(cost(lambda: pb.GatewayMessage(submit=pb.Submit(prompt=ids))) for _ in range(5))
    assert packed < listed / 2, (packed, listed)


async def test_a_resubmitted_request_is_sent_once() -> None:
    generation = generation_of(Prompt.of([1]))
    former, outbox = outbox_of(generation), outbox_of(generation)
    former.submit(generation, generation.choices[:1])
    for _ in range(2):
        outbox.submit(generation, generation.choices[:1])
    former.close()
    outbox.close()
    assert [message async for message in former.drain()] == []
    sent = [message async for message in outbox.drain()]
    assert [[choice.epoch for choice in message.submit.choices] for message in sent] == [[3]]


async def test_choices_that_wait_to_be_submitted_hold_no_prompt_of_their_own() -> None:
    prompt = Prompt.of(list(range(1 << 16)))
    tracemalloc.start()
    try:
        generation = generation_of(prompt, n=64)
        outbox_of(generation).submit(generation, generation.choices)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert generation.prompt is prompt
    assert held < len(prompt.packed), held


async def test_choices_that_are_lost_together_are_submitted_with_one_prompt() -> None:
    generation = generation_of(Prompt.of(list(range(1000, 5000))), n=64)
    outbox = outbox_of(generation)
    outbox.submit(generation, generation.choices)
    sent = outbox.drain()
    first = await anext(sent)
    for choice in generation.choices:
        assert generation.lose(choice.number, 1) is choice
        outbox.submit(generation, [choice])
    again = await anext(sent)
    outbox.close()
    assert [message async for message in sent] == []
    assert [choice.epoch for choice in again.submit.choices] == [2] * 64
    assert max(first.ByteSize(), again.ByteSize()) < len(generation.prompt.packed) + 64 * 16


async def test_a_request_whose_client_disconnected_is_not_sent_to_a_scheduler_that_read_nothing_yet() -> None:
    open_ = OpenRequests()
    catalog = Catalog(on_change=lambda models: None)
    tenants = Tenants(TenantsFile(None), by_scheduler=False)
    link = SchedulerLink(
        name="gw", targets=("",), tls=None, sink="", hold_s=1.0, open_=open_, catalog=catalog, tenants=tenants,
        metrics=Metrics(),
    )  # fmt: skip
    outbox = link._outbox = Outbox(open_)
    generation = generation_of(Prompt.of([1]))
    link.open(generation)
    link.close(generation)
    outbox.close()
    assert [message async for message in outbox.drain()] == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"echo": True, "prompt": "é" * 2100, "n": 128}, "echo"),
        ({"return_token_ids": True, "prompt": list(range(6, 256)) * 9, "n": 128}, "return_token_ids"),
    ],
)
async def test_an_answer_that_repeats_much_is_refused(pool: Any, body: dict[str, Any], param: str) -> None:
    long = pb.ModelStatus()
    long.CopyFrom(pool.peer.models[0])
    long.footprint.max_model_len = 8192
    pool.peer.publish([long])
    await pool.until_models(lambda models: models["tiny"].footprint.max_model_len == 8192)
    status, answer, _ = await pool.complete(**{"max_tokens": 1, **body})
    assert (status, answer["error"]["param"]) == (400, param), answer
    assert (await pool.complete(**{"max_tokens": 1, **body, "n": 1}))[0] == 200
