"""What parameters do to a request and its answer, and that all of vLLM's are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway.conftest import EOS, HI, STRICT, TEXT

from aegaeon_gateway.request.messages import Message
from aegaeon_gateway.request.parameters import NO_EFFECT, REFUSED
from aegaeon_gateway.request.schema import ChatRequest, CompletionRequest
from aegaeon_proto.v1 import gateway_pb2 as pb

VLLM = Path(__file__).parents[2] / "docs/reference/vllm_parameters.txt"
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
DUMPED: list[dict[str, Any]] = [
    {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "function_call": None,
     "tool_calls": None},
    {"role": "assistant", "content": "x", "tool_calls": None, "function_call": None, "images": [],
     "provider_specific_fields": {"refusal": None}, "thinking_blocks": None},
    {"role": "assistant", "content": "x", "reasoning_content": "y", "tool_calls": []},
    {"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": 0}]},
    {"role": "tool", "tool_call_id": "call_1", "name": "f", "content": "2"},
    {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}], "name": None},
]  # fmt: skip


async def events(pool: Any, path: str, **body: Any) -> list[Any]:
    async with pool.http.post(pool.url + path, json={"model": "tiny", "stream": True, **body}) as response:
        assert response.status == 200, await response.text()
        lines = (await response.text()).splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_every_parameter_of_vllms_server_is_known() -> None:
    names = {line for line in VLLM.read_text().splitlines() if not line.startswith("#")}
    known = {*REFUSED, *NO_EFFECT}
    for kind in (ChatRequest, CompletionRequest):
        known |= {*kind.__struct_encode_fields__}
        assert not known & REFUSED.keys() & {*kind.__struct_encode_fields__}, "it works, and is refused"
    assert len(names) > 60
    assert names <= known


@STRICT
async def test_what_asks_for_nothing_is_accepted_on_both_endpoints(pool: Any) -> None:
    every = dict.fromkeys([*REFUSED, *NO_EFFECT])
    works = {*ChatRequest.__struct_encode_fields__} - {"model", "messages"}
    assert (await pool.chat(**every, **dict.fromkeys(works)))[0] == 200
    works = {*CompletionRequest.__struct_encode_fields__} - {"model", "prompt", "max_tokens"}
    assert (await pool.complete(**every, **dict.fromkeys(works)))[0] == 200
    for name, refused in REFUSED.items():
        for neutral in refused.neutral:
            status, body, _ = await pool.chat(**{name: neutral})
            assert status == 200, (name, neutral, body)
        status, body, _ = await pool.chat(**{name: {"some": "thing"}})
        assert (status, body["error"]["param"]) == (400, name)
        assert refused.reason in body["error"]["message"]


async def test_answers_are_taken_back_as_clients_dump_them(pool: Any) -> None:
    status, body, _ = await pool.chat(messages=[HI, *DUMPED])
    assert status == 200, body


def test_templates_get_calls_as_objects_and_reasoning_by_its_name() -> None:
    messages = msgspec.json.decode(json.dumps(DUMPED).encode(), type=list[Message])
    assert messages[2].for_template() == {"role": "assistant", "content": "x", "reasoning_content": "y"}
    assert messages[3].for_template()["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    ]
    assert messages[4].for_template() == {"role": "tool", "content": "2", "name": "f", "tool_call_id": "call_1"}


async def test_special_tokens_are_shown_on_request(pool: Any, tokenizer: Any) -> None:
    special = tokenizer.token_to_id("<|user|>")
    pool.peer.say = lambda submit, choice: [special, *tokenizer.encode("hi").ids, EOS]
    for path, body in (("/v1/chat/completions", {"messages": [HI]}), ("/v1/completions", {"prompt": "x"})):
        for skip, expected in ((True, "hi"), (None, "hi"), (False, "<|user|>hi")):
            _, answer, _ = await pool.post(path, {"model": "tiny", "skip_special_tokens": skip, **body})
            [choice] = answer["choices"]
            assert choice.get("text", choice.get("message", {}).get("content")) == expected


async def test_stop_reasons_name_what_the_client_asked_for(pool: Any) -> None:
    async def ended(**body: Any) -> tuple[Any, Any, str]:
        _, answer, _ = await pool.chat(**body)
        [choice] = answer["choices"]
        last = (await events(pool, "/v1/chat/completions", messages=[HI], **body))[-1]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == (choice["finish_reason"], choice["stop_reason"])
        return choice["finish_reason"], choice["stop_reason"], choice["message"]["content"]

    assert await ended() == ("stop", None, TEXT)
    assert await ended(stop_token_ids=[EOS]) == ("stop", EOS, TEXT)
    assert await ended(max_tokens=1) == ("length", None, "Größe")
    before, _, _ = TEXT.partition(" fox")
    assert await ended(stop=["brown", " fox"]) == ("stop", "brown", before.removesuffix("brown"))
    assert await ended(stop=[" fox"], include_stop_str_in_output=True) == ("stop", " fox", before + " fox")


async def test_stop_strings_count_from_the_token_behind_min_tokens_on(pool: Any, tokenizer: Any) -> None:
    pool.peer.say = lambda submit, choice: [*tokenizer.encode("ab ab ab").ids, EOS]
    length = len(tokenizer.encode("ab").ids)
    _, body, _ = await pool.chat(stop="b", min_tokens=length)
    assert body["choices"][0]["message"]["content"] == "ab a"
    _, body, _ = await pool.chat(stop="b", min_tokens=length - 1)
    assert body["choices"][0]["message"]["content"] == "a"


async def test_prompts_are_cut_where_and_as_far_as_the_request_says(pool: Any) -> None:
    prompt = list(range(20, 320))
    for change, expected in (
        ({"truncate_prompt_tokens": 5}, prompt[-5:]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, prompt[:5]),
        ({"truncate_prompt_tokens": -1, "max_tokens": 6}, prompt[-250:]),
    ):
        status, _, _ = await pool.complete(prompt=prompt, **{"max_tokens": 1, **change})
        assert status == 200
        assert list(pool.peer.submits[-1].prompt) == expected
    status, _, _ = await pool.chat(messages=[{"role": "user", "content": "word " * 3000}], truncate_prompt_tokens=9)
    assert status == 200
    assert len(pool.peer.submits[-1].prompt) == 9


async def test_the_template_gets_what_a_chat_says_of_it(pool: Any, tokenizer: Any) -> None:
    def text(submit: pb.Submit) -> str:
        return str(tokenizer.decode(list(submit.prompt), skip_special_tokens=False))

    await pool.chat(add_generation_prompt=False)
    continued = [HI, {"role": "assistant", "content": "so"}]
    await pool.chat(messages=continued, add_generation_prompt=False, continue_final_message=True)
    _, body, _ = await pool.chat(
        messages=continued, add_generation_prompt=False, continue_final_message=True, echo=True
    )
    await pool.chat(chat_template_kwargs={"bos_token": "<pad>"}, add_special_tokens=True)
    assert [text(submit) for submit in pool.peer.submits] == [
        "<s><|user|>hi<|end|>",
        "<s><|user|>hi<|end|><|assistant|>so",
        "<s><|user|>hi<|end|><|assistant|>so",
        "<pad><|user|>hi<|end|><|assistant|>",
    ]
    assert body["choices"][0]["message"]["content"] == "so" + TEXT


async def test_masks_reach_the_engine_as_tokens(pool: Any, tokenizer: Any) -> None:
    await pool.complete(bad_words=["quick"], allowed_token_ids=[7, 9], prompt_logprobs=0)
    sampling = pool.peer.submits[0].sampling
    runs = [tokenizer.encode(word).ids for word in ("quick", " quick")]
    assert [list(run.tokens) for run in sampling.bad_words] == (runs if len(runs[1]) == len(runs[0]) else runs[:1])
    assert list(sampling.allowed_ids) == [7, 9]
    assert sampling.HasField("prompt_logprobs")


async def test_every_chunk_has_the_usage_so_far(pool: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, body in (("/v1/chat/completions", {"messages": [HI]}), ("/v1/completions", {"prompt": "x"})):
        chunks = await events(pool, path, stream_options=options, **body)
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == counts[-2] > 0
        assert all(chunk["usage"]["prompt_tokens"] == chunks[-1]["usage"]["prompt_tokens"] for chunk in chunks)


def scored(submit: pb.Submit) -> list[pb.PromptLogprob]:
    """Token k has the logprob -k; the likeliest one is token 7."""
    return [
        pb.PromptLogprob(token=token, logprob=-index, rank=3, top=[pb.TopLogprob(token=7, logprob=-0.25)])
        for index, token in enumerate(submit.prompt)
        if index
    ]


@pytest.fixture
def scoring(pool: Any) -> Any:
    """Its engine tells of prompts."""
    made = pool.peer.tokens_of

    def tokens_of(submit: pb.Submit, choice: pb.Choice) -> list[pb.Token]:
        tokens: list[pb.Token] = made(submit, choice)
        tokens[0].prompt.extend(scored(submit))
        return tokens

    pool.peer.tokens_of = tokens_of
    return pool


async def test_an_echo_has_the_logprobs_of_the_prompt(scoring: Any, tokenizer: Any) -> None:
    prompt = "the quick fox"
    ids = tokenizer.encode(prompt).ids
    _, body, _ = await scoring.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=2)
    [choice] = body["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith(prompt)
    assert logprobs["token_logprobs"] == [None, *(-index for index in range(1, len(ids))), -0.5, -0.5]
    assert logprobs["top_logprobs"][0] is None
    assert sorted(logprobs["top_logprobs"][1].values()) == [-1, -0.25]
    for name, start in zip(logprobs["tokens"][: len(ids)], logprobs["text_offset"], strict=False):
        assert choice["text"][start : start + len(name)] == name
    assert logprobs["text_offset"][len(ids)] == len(prompt)
    chunks = await events(scoring, "/v1/completions", prompt=prompt, echo=True, logprobs=1, max_tokens=2)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    for column in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        streamed = [entry for chunk in chunks for entry in chunk["choices"][0]["logprobs"][column]]
        assert streamed == logprobs[column]


async def test_an_echo_alone_shows_no_output_and_bills_none(scoring: Any, tokenizer: Any) -> None:
    prompts = ["the quick fox", "tokens"]
    _, body, _ = await scoring.complete(prompt=prompts, echo=True, logprobs=0, max_tokens=0)
    assert [choice["text"] for choice in body["choices"]] == prompts
    for prompt, choice in zip(prompts, body["choices"], strict=True):
        assert len(choice["logprobs"]["token_logprobs"]) == len(tokenizer.encode(prompt).ids)
        assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0
    assert all(submit.limits.max_tokens == 1 for submit in scoring.peer.submits)


async def test_prompt_logprobs_have_the_shape_of_vllms(scoring: Any) -> None:
    _, chat, _ = await scoring.chat(prompt_logprobs=1)
    _, completion, _ = await scoring.complete(prompt=[5, 6], prompt_logprobs=1, return_tokens_as_token_ids=True)
    assert len(chat["prompt_logprobs"]) == len(scoring.peer.submits[0].prompt)
    assert completion["choices"][0]["prompt_logprobs"] == [
        None,
        {
            "7": {"logprob": -0.25, "rank": 1, "decoded_token": "token_id:7"},
            "6": {"logprob": -1.0, "rank": 3, "decoded_token": "token_id:6"},
        },
    ]


async def test_logprobs_name_tokens_by_their_ids_on_request(pool: Any) -> None:
    _, body, _ = await pool.chat(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)
    first = pool.peer.say(pool.peer.submits[0], 0)[0]
    entry = body["choices"][0]["logprobs"]["content"][0]
    assert (entry["token"], entry["top_logprobs"][0]["token"]) == (f"token_id:{first}", f"token_id:{first}")
