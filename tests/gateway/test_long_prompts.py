"""What a request with a long prompt, or an answer that repeats it, costs the gateway's loop and memory."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from aegaeon_gateway.generation.generation import Generation, Job, Submission
from aegaeon_gateway.generation.output import ChoiceOutput
from aegaeon_gateway.metrics import Metrics
from aegaeon_gateway.models.catalog import Catalog
from aegaeon_gateway.request.prompt import Prompt
from aegaeon_gateway.rpc.link import SchedulerLink
from aegaeon_gateway.rpc.open_requests import OpenRequests
from aegaeon_gateway.tenancy import Tenants, TenantsFile
from aegaeon_gateway.text.detokenize import Vocabulary
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1.model_pb2 import Limits, Sampling

VOCABULARY = Vocabulary(Tokenizer(WordLevel({"a": 0}, unk_token="a")))


def generation_of(prompt: Prompt) -> Generation:
    job = Job("r", "m", prompt, Sampling(seed=3), Limits(max_tokens=8))
    outputs = [ChoiceOutput(index, VOCABULARY, ()) for index in range(2)]
    return Generation(job, outputs, Metrics().of("m"), asyncio.Event(), 0.0)


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_a_packed_prompt_is_what_protobuf_makes_of_its_ids(ids: list[int]) -> None:
    assert list(Prompt.of(ids).ids) == ids
    generation = generation_of(Prompt.of(ids))
    message = generation.submission(generation.choices).message(2.5)
    assert message is not None
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

    packed = min(cost(lambda: generation.submission(generation.choices).message(0.0)) for _ in range(5))
    listed = min(cost(lambda: pb.GatewayMessage(submit=pb.Submit(prompt=ids))) for _ in range(5))
    assert packed < listed / 2, (packed, listed)


def test_a_resubmitted_request_is_sent_once() -> None:
    generation = generation_of(Prompt.of([1]))
    first, second = (generation.submission(generation.choices[:1]) for _ in range(2))
    assert first.message(0.0) is None
    message = second.message(0.0)
    assert message is not None
    assert [choice.epoch for choice in message.submit.choices] == [2]


async def test_a_request_whose_client_disconnected_is_not_sent_to_a_scheduler_that_read_nothing_yet() -> None:
    open_ = OpenRequests()
    catalog = Catalog(on_change=lambda models: None)
    tenants = Tenants(TenantsFile(None), by_scheduler=False)
    link = SchedulerLink(
        name="gw", targets=("",), tls=None, sink="", hold_s=1.0, open_=open_, catalog=catalog, tenants=tenants,
        metrics=Metrics(),
    )  # fmt: skip
    outbox: asyncio.Queue[pb.GatewayMessage | Submission] = asyncio.Queue()
    link._outbox = outbox
    generation = generation_of(Prompt.of([1]))
    link.open(generation)
    link.close(generation)
    sent = link._drain(outbox)
    assert (await anext(sent)).WhichOneof("body") == "cancel"


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
