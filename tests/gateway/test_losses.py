"""Engines, the scheduler and clients go away in the middle: no token is lost or repeated, nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections.abc import Coroutine
from typing import Any

import aiohttp
import pytest
from gateway.conftest import StartGateway

from aegaeon_gateway.generation import generation
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1 import model_pb2

TEXT = "Größe 🙂, 数字 and the quick brown fox; tokens are scheduled one by one."
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}


async def text_of(response: aiohttp.ClientResponse) -> str:
    """The joined text of a stream; an error event is an error."""
    text = ""
    async for line in response.content:
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            text += "".join(choice["delta"].get("content", "") for choice in chunk["choices"])
    return text


async def first_text(response: aiohttp.ClientResponse) -> str:
    """As soon as a stream has text."""
    async for line in response.content:
        if line.startswith(b"data: {") and (text := json.loads(line[6:])["choices"][0]["delta"].get("content")):
            return str(text)
    raise AssertionError("the stream ends without text")


async def open_stream(pool: Any, **change: Any) -> aiohttp.ClientResponse:
    """Returns with the status line, as soon as the scheduler has queued the request."""
    response: aiohttp.ClientResponse = await pool.http.post(f"{pool.url}/v1/chat/completions", json={**CHAT, **change})
    return response


async def submitted(pool: Any, request: Coroutine[Any, Any, Any]) -> tuple[asyncio.Task[Any], pb.Submit]:
    """A request that the scheduler has, without tokens for now, and what was submitted."""
    pool.peer.serve_tokens = False
    task = asyncio.create_task(request)
    await pool.peer.until(lambda: bool(pool.peer.submits))
    return task, pool.peer.submits[0]


@pytest.mark.parametrize("seed", range(4))
async def test_repeated_and_reordered_tokens_make_no_difference(pool: Any, seed: int) -> None:
    pool.peer.chaos = random.Random(seed)
    answers = await asyncio.gather(*(pool.chat(n=3) for _ in range(5)))
    for status, body, _ in answers:
        assert status == 200
        assert [choice["message"]["content"] for choice in body["choices"]] == [TEXT] * 3


async def test_a_lost_sequence_resumes_from_its_prefix_under_a_higher_epoch(pool: Any) -> None:
    pool.peer.lose_after = [7, 0, 5]
    status, body, _ = await pool.chat()
    assert status == 200
    assert body["choices"][0]["message"]["content"] == TEXT
    assert [submit.choices[0].epoch for submit in pool.peer.submits] == [1, 2, 3, 4]
    output = pool.peer.say(pool.peer.submits[0], 0)
    for submit in pool.peer.submits:
        prefix = list(submit.choices[0].prefix)
        assert prefix == output[: len(prefix)]


async def test_a_request_that_kills_every_engine_is_failed(pool: Any) -> None:
    pool.peer.lose_after = [0] * 20
    status, body, _ = await pool.chat()
    assert status == 500
    assert "lost" in body["error"]["message"]


async def test_losses_caused_by_other_requests_are_not_counted(pool: Any) -> None:
    pool.peer.lose_after, pool.peer.blameless = [0] * 20, True
    status, body, _ = await pool.chat()
    assert (status, body["choices"][0]["message"]["content"]) == (200, TEXT)


async def test_a_token_between_two_losses_resets_the_count(pool: Any) -> None:
    pool.peer.lose_after = [0, 0, 0, 0, 0, 0, 1] * 3
    status, body, _ = await pool.chat()
    assert (status, body["choices"][0]["message"]["content"]) == (200, TEXT)


async def test_tokens_of_dead_engines_and_unknown_sequences_are_acknowledged_and_ignored(pool: Any) -> None:
    peer = pool.peer
    submission, first = await submitted(pool, pool.chat())
    old = peer.tokens_of(first, first.choices[0])
    await peer.push(old[:4])
    await peer.until(lambda: bool(peer.acks))
    peer.reply(lost=pb.Lost(seq=model_pb2.SeqId(request=first.request), epoch=1, reason="test"))
    await peer.until(lambda: len(peer.submits) == 2)
    second = peer.submits[1]
    assert list(second.choices[0].prefix) == [token.token for token in old[:4]]
    unknown = pb.Token(seq=model_pb2.SeqId(request="unknown"), epoch=1, index=0, token=3)
    wrong = [pb.Token(seq=token.seq, epoch=1, index=token.index, token=99) for token in old[4:]]
    await peer.push([unknown, *wrong])
    await peer.push(peer.tokens_of(second, second.choices[0]))
    _, body, _ = await submission
    assert body["choices"][0]["message"]["content"] == TEXT
    await peer.until(lambda: peer.acks[-1:] == [peer._number])
    assert peer.acks == sorted(peer.acks)


async def test_a_broken_token_stream_is_resent_on_the_next_one(pool: Any) -> None:
    peer = pool.peer
    submission, _ = await submitted(pool, pool.chat())
    tokens = peer.tokens_of(peer.submits[0], peer.submits[0].choices[0])
    await peer.push(tokens[:9])
    await peer.until(lambda: bool(peer.acks))
    await peer.break_stream()
    await peer.push(tokens[3:])
    _, body, _ = await submission
    assert body["choices"][0]["message"]["content"] == TEXT


async def test_open_streams_survive_a_crash_of_the_scheduler(pool: Any) -> None:
    peer = pool.peer
    opening, submit = await submitted(pool, open_stream(pool, n=2))
    whole = [peer.tokens_of(submit, choice) for choice in submit.choices]
    await peer.push([*whole[0], *whole[1][:6]])
    async with await opening as response:
        await peer.until(lambda: peer.acks[-1:] == [peer._number])
        await peer.crash()
        late = asyncio.create_task(pool.chat())  # arrives while the scheduler is unavailable
        peer.serve_tokens = True
        await peer.start()
        streamed = await text_of(response)
        assert (await late)[1]["choices"][0]["message"]["content"] == TEXT
    assert len(streamed) == 2 * len(TEXT)
    again = next(one for one in peer.submits[1:] if one.request == submit.request)
    assert [choice.choice for choice in again.choices] == [1], "a finished choice is not submitted again"
    assert again.choices[0].epoch == 2
    assert list(again.choices[0].prefix) == [token.token for token in whole[1][:6]]


async def test_no_task_is_left_of_a_broken_stream_to_the_scheduler(pool: Any) -> None:
    gc.disable()  # it would end what is left, with an error in the log
    try:
        for _ in range(3):
            await pool.peer.crash()
            await pool.peer.start()
            assert (await pool.chat())[0] == 200
        readers = [task for task in asyncio.all_tasks() if "_consume_request_iterator" in repr(task.get_coro())]
        assert len(readers) == 1
    finally:
        gc.enable()


async def test_a_client_that_disconnects_cancels_its_request(pool: Any) -> None:
    peer = pool.peer
    waiting, _ = await submitted(pool, pool.chat())
    waiting.cancel()  # before the first token
    await peer.until(lambda: len(peer.cancels) == 1)
    opening = asyncio.create_task(open_stream(pool))
    await peer.until(lambda: len(peer.submits) == 2)
    await peer.push(peer.tokens_of(peer.submits[1], peer.submits[1].choices[0])[:3])
    (await opening).close()  # in the middle
    await peer.until(lambda: len(peer.cancels) == 2)
    assert [cancel.request for cancel in peer.cancels] == [submit.request for submit in peer.submits]
    assert all(not cancel.choices for cancel in peer.cancels), "all choices"


async def test_a_stop_string_of_one_choice_cancels_that_choice_alone(pool: Any, tokenizer: Any) -> None:
    peer = pool.peer
    submission, submit = await submitted(pool, pool.chat(n=2, stop="quick"))
    tokens = [peer.tokens_of(submit, choice) for choice in submit.choices]
    await peer.push(tokens[0][:-1])
    await peer.until(lambda: bool(peer.cancels))
    assert list(peer.cancels[0].choices) == [0]
    await peer.push(tokens[1])
    _, body, _ = await submission
    assert [choice["message"]["content"] for choice in body["choices"]] == [TEXT[: TEXT.index("quick")]] * 2


async def test_an_engine_error_is_reported_with_the_schedulers_reason(pool: Any) -> None:
    peer = pool.peer
    submission, _ = await submitted(pool, pool.chat())
    request = peer.submits[0].request
    failed = pb.Token(seq=model_pb2.SeqId(request=request), epoch=1, index=0, finish=model_pb2.FINISH_REASON_ERROR)
    await peer.push([failed])
    peer.reply(rejected=pb.Rejected(request=request, code=pb.REJECT_CODE_ENGINE, reason="the GPU fell off"))
    status, body, _ = await submission
    assert status == 500
    assert body["error"]["message"] == "the GPU fell off"


async def test_an_error_after_the_first_token_is_an_event_of_the_stream(pool: Any) -> None:
    peer = pool.peer
    opening, submit = await submitted(pool, open_stream(pool))
    await peer.push(peer.tokens_of(submit, submit.choices[0])[:3])
    async with await opening as response:
        peer.reply(rejected=pb.Rejected(request=submit.request, code=pb.REJECT_CODE_ENGINE, reason="gone"))
        lines = [line async for line in response.content if line.startswith(b"data:")]
    assert json.loads(lines[-1][6:])["error"]["message"] == "gone"


async def test_an_answer_that_has_begun_waits_for_memory(pool: Any) -> None:
    peer = pool.peer
    peer.lose_after = [5]
    peer.reject = [None, pb.Rejected(code=pb.REJECT_CODE_OVERLOADED, reason="full", retry_after_s=0.1)]
    status, body, _ = await pool.chat()
    assert status == 200
    assert body["choices"][0]["message"]["content"] == TEXT
    assert len(peer.submits) == 3


async def test_an_answer_that_no_engine_can_go_on_with_ends_and_what_was_due_counts_as_missed(pool: Any) -> None:
    peer, model = pool.peer, pb.ModelStatus()
    model.CopyFrom(peer.models[0])
    model.spec.ttft_s, model.spec.tbt_s = 0.2, 0.05
    peer.publish([model])
    await pool.until_models(lambda models: models["tiny"].spec.ttft_s == model.spec.ttft_s)
    opening, submit = await submitted(pool, open_stream(pool))
    await peer.push(peer.tokens_of(submit, submit.choices[0])[:3])
    async with await opening as response:
        await first_text(response)
        for metric in pool.served.metrics.missed.collect():
            assert [one.value for one in metric.samples if one.name.endswith("_total")] == [0.0]
        await asyncio.sleep(model.spec.ttft_s + 10 * model.spec.tbt_s)  # silence is the point
        code = pb.REJECT_CODE_UNSERVED
        peer.reply(rejected=pb.Rejected(request=submit.request, code=code, reason="not served", retry_after_s=0.1))
        lines = [line async for line in response.content if line.startswith(b"data:")]
    assert json.loads(lines[-1][6:])["error"]["message"] == "not served"
    assert len(peer.submits) == 1
    (metric,) = pool.served.metrics.missed.collect()
    (count,) = [one.value for one in metric.samples if one.name.endswith("_total")]
    assert 7 <= count < 60  # ten and the first, less the three that came; more on a loaded machine


@pytest.mark.parametrize("away", ["no room", "no scheduler"])
async def test_an_answer_that_a_client_reads_is_not_ended_by_hold(
    peer: Any, start_gateway: StartGateway, away: str
) -> None:
    hold_s = 0.5
    async with start_gateway(hold_s=hold_s) as pool:
        await pool.until_loaded("tiny")  # its tokenizer may take longer than a request is held
        opening, submit = await submitted(pool, open_stream(pool))
        await peer.push(peer.tokens_of(submit, submit.choices[0])[:3])
        async with await opening as response:
            begun = await first_text(response)
            peer.serve_tokens = True
            if away == "no room":
                full = pb.Rejected(code=pb.REJECT_CODE_OVERLOADED, reason="full", retry_after_s=hold_s / 2)
                peer.reject = [pb.Rejected(code=full.code, retry_after_s=full.retry_after_s) for _ in range(4)]
                full.request = submit.request
                peer.reply(rejected=full)
            else:
                await peer.crash()
                await asyncio.sleep(2 * hold_s)  # unavailable for longer than hold_s is the point
                await peer.start()
            assert begun + await text_of(response) == TEXT


async def test_a_request_that_waited_long_for_an_engine_survives_a_short_scheduler_outage(
    peer: Any, start_gateway: StartGateway
) -> None:
    """As in a pool that starts engines on demand: there the scheduler holds requests for longer than `hold_s`."""
    hold_s = 3.0
    async with start_gateway(hold_s=hold_s) as pool:
        await pool.until_loaded("tiny")  # its tokenizer may take longer than a request is held
        submission, _ = await submitted(pool, pool.chat())
        await asyncio.sleep(1.2 * hold_s)  # to wait for longer than hold_s is the point
        await peer.crash()
        await asyncio.wait([submission], timeout=0.2 * hold_s)  # the gateway looks meanwhile
        peer.serve_tokens = True
        await peer.start()
        status, body, _ = await submission
    assert (status, body["choices"][0]["message"]["content"]) == (200, TEXT)


async def test_last_tokens_lost_with_an_engine_that_had_reported_the_end_are_computed_again(
    pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "END_GRACE_S", 1.5)
    peer = pool.peer
    submission, first = await submitted(pool, pool.chat())
    ended = pb.Ended(seq=model_pb2.SeqId(request=first.request), epoch=1)
    peer.reply(ended=ended)
    for token in (output := peer.tokens_of(first, first.choices[0]))[:3]:
        await asyncio.sleep(0.6)  # they are late, but they come, all behind the grace period of the first
        await peer.push([token])
    assert len(peer.submits) == 1
    await peer.until(lambda: len(peer.submits) == 2)
    [again] = peer.submits[1].choices
    assert (again.epoch, list(again.prefix)) == (2, [token.token for token in output[:3]])
    peer.reply(ended=ended)  # of the first time: not of what runs
    await asyncio.sleep(1.7)
    assert len(peer.submits) == 2
    await peer.push(peer.tokens_of(peer.submits[1], again))
    _, body, _ = await submission
    assert body["choices"][0]["message"]["content"] == TEXT


async def test_a_choice_that_is_lost_after_its_last_token_is_cancelled_at_the_scheduler(pool: Any) -> None:
    status, body, _ = await pool.chat()
    assert (status, body["choices"][0]["message"]["content"]) == (200, TEXT)
    [submit] = pool.peer.submits
    pool.peer.reply(lost=pb.Lost(seq=model_pb2.SeqId(request=submit.request), epoch=1, reason="test"))
    await pool.peer.until(lambda: bool(pool.peer.cancels))
    [cancel] = pool.peer.cancels
    assert (cancel.request, list(cancel.choices)) == (submit.request, [0])
    assert len(pool.peer.submits) == 1
