"""What is refused, and how: OpenAI's shapes, the parameter by name, nothing ignored."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from gateway.conftest import STRICT, TEXT, StartGateway, model_status

from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1 import model_pb2

JSON = {"Content-Type": "application/json"}
HI = {"role": "user", "content": "hi"}
CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}

REFUSED_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "0.5"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1e-50}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"seed": 1.5}, "seed"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": 3}, "stop"),
    ({"stop_token_ids": [384]}, "stop_token_ids"),
    ({"n": 0}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 1e-40}, "repetition_penalty"),
    ({"top_k": 10**18}, "top_k"),
    ({"logit_bias": {"5": 1e39}}, "logit_bias"),
    ({"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"384": 1}}, "logit_bias"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"best_of": True}, "best_of"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
    ({"messages": [HI, {"role": "function", "content": "x"}]}, "messages[1].role"),
    ({"messages": [{**HI, "tool_calls": [CALL]}]}, "messages[0]"),
    ({"messages": [{**HI, "tool_call": 1}]}, "messages[0].tool_call"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ({"allowed_token_ids": [384]}, "allowed_token_ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words"),
    ({"bad_words": ["x" * 100]}, "bad_words"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"priority": 2**31}, "priority"),
    ({"priority": 0.5}, "priority"),
    ({"messages": [{"role": "user"}]}, "messages[0]"),
    ({"model": 7}, "model"),
]
REFUSED_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": {}}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": [384]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"best_of": 3}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"prompt": ["a"] * 100, "n": 2}, "n"),
]


@STRICT
async def test_a_refused_chat_names_the_parameter(pool: Any) -> None:
    for change, param in REFUSED_CHATS:
        status, body, _ = await pool.chat(**change)
        assert (status, body["error"]["param"]) == (400, param), (change, body)
        assert body["error"]["type"] == "invalid_request_error"
        assert param.split("[")[0] in body["error"]["message"]
    assert not pool.peer.submits


async def test_a_refused_completion_names_the_parameter(pool: Any) -> None:
    for change, param in REFUSED_COMPLETIONS:
        status, body, _ = await pool.complete(**change)
        assert (status, body["error"]["param"]) == (400, param), (change, body)
    assert not pool.peer.submits


async def test_parameters_without_effect_are_accepted(pool: Any) -> None:
    neutral: dict[str, Any] = {
        "user": "me",
        "metadata": {"a": "b"},
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "temperature": None,
        "service_tier": "auto",
        "logit_bias": {"5": -100},
        "top_k": -1,
        "seed": -5,
    }
    status, _, _ = await pool.chat(**neutral)
    assert status == 200
    sampling = pool.peer.submits[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (1.0, 0, 2**64 - 5)
    assert dict(sampling.logit_bias) == {5: -100.0}


async def test_extensions_reach_the_engine(pool: Any) -> None:
    status, body, _ = await pool.chat(
        top_k=5, min_p=0.25, repetition_penalty=1.5, stop_token_ids=[9], ignore_eos=True, return_token_ids=True,
        min_tokens=3, max_tokens=100,
    )  # fmt: skip
    assert status == 200
    submit = pool.peer.submits[0]
    assert (submit.sampling.top_k, submit.sampling.min_p, submit.sampling.repetition_penalty) == (5, 0.25, 1.5)
    assert list(submit.limits.stop_ids) == [9]
    assert (submit.limits.min_tokens, submit.limits.max_tokens) == (3, 100)
    assert body["choices"][0]["token_ids"] == pool.peer.say(submit, 0)
    assert body["prompt_token_ids"] == list(submit.prompt)


async def test_prompts_are_tokenized_as_the_tokenizer_and_its_template_do(pool: Any, tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await pool.chat(messages=[{"role": "user", "content": parts}])
    await pool.complete(prompt=[[5, 6], [7]])
    rendered = "<s><|user|>a\nb<|end|><|assistant|>"
    assert list(pool.peer.submits[0].prompt) == tokenizer.encode(rendered, add_special_tokens=False).ids
    assert [list(submit.prompt) for submit in pool.peer.submits[1:]] == [[5, 6], [7]]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_body_that_is_no_json_object_is_refused(pool: Any, path: str) -> None:
    for body in (b"{", b"", b"[1]", b'{"model": "tiny", "temperature": NaN}', b"\xff\xfe"):
        async with pool.http.post(pool.url + path, data=body, headers=JSON) as response:
            assert response.status == 400
            assert (await response.json())["error"]["code"] == "invalid_json"


async def test_a_body_over_the_limit_is_refused(pool: Any) -> None:
    status, body, _ = await pool.chat(messages=[{"role": "user", "content": "x" * 200_000}])
    assert status == 413
    assert "100000" in body["error"]["message"]


async def test_a_chunked_body_is_read(pool: Any) -> None:
    async def parts() -> Any:
        yield b'{"model": "tiny", "prompt": "hi", '
        yield b'"max_tokens": 3}'

    async with pool.http.post(f"{pool.url}/v1/completions", data=parts(), headers=JSON) as response:
        assert response.status == 200
        assert (await response.json())["usage"]["completion_tokens"] == 3


async def test_too_many_tokens_are_refused_with_both_numbers(pool: Any) -> None:
    status, body, _ = await pool.complete(prompt=[5] * 300, max_tokens=1)
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "context_length_exceeded", "prompt")
    assert "300" in body["error"]["message"]
    assert "256" in body["error"]["message"]
    status, body, _ = await pool.complete(prompt=[5] * 200, max_tokens=57)
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "context_length_exceeded", "max_tokens")
    assert "257" in body["error"]["message"]


async def test_an_unknown_route_or_method_has_the_same_shape(pool: Any) -> None:
    async with pool.http.get(f"{pool.url}/v1/nothing") as response:
        assert response.status == 404
        assert (await response.json())["error"]["type"] == "invalid_request_error"
    async with pool.http.get(f"{pool.url}/v1/completions") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"


async def test_the_request_id_is_returned(pool: Any) -> None:
    _, _, headers = await pool.post(
        "/v1/completions", {"model": "tiny", "prompt": "x"}, headers={"X-Request-Id": "mine-1"}
    )
    assert headers["X-Request-Id"] == "mine-1"
    _, _, headers = await pool.post("/v1/completions", {"model": "none", "prompt": "x"})
    assert len(headers["X-Request-Id"]) == 32


async def test_models_show_their_phase_and_failed_ones_their_reason(pool: Any) -> None:
    failed = pb.ModelStatus(
        spec=model_pb2.ModelSpec(name="org/broken"), phase=model_pb2.MODEL_PHASE_FAILED, reason="no config.json"
    )
    failed.spec.created_s = 1767225600
    pool.peer.publish([*pool.peer.models, failed])
    await pool.until_models(lambda models: "org/broken" in models)
    _, body = await get(pool, "/v1/models")
    assert body["data"][1]["created"] == 1767225600, "of the model: the same of every gateway, whenever it started"
    assert body["data"][0]["created"] > 1767225600, "of the gateway, where it is not known"
    assert [model["id"] for model in body["data"]] == ["tiny", "org/broken"]
    assert body["data"][0]["max_model_len"] == 256
    assert body["data"][0]["aegaeon"] == {"phase": "cached", "reason": "", "task": None}
    assert body["data"][1]["aegaeon"] == {"phase": "failed", "reason": "no config.json", "task": None}
    status, body, _ = await pool.chat(model="org/broken")
    assert status == 503
    assert "no config.json" in body["error"]["message"]


async def test_requests_for_a_model_that_engines_fetch_wait_until_it_is_available(pool: Any) -> None:
    [ready] = pool.peer.models
    fetching = pb.ModelStatus()
    fetching.CopyFrom(ready)
    fetching.phase, fetching.wait = model_pb2.MODEL_PHASE_FETCHING, True
    pool.peer.publish([fetching])
    await pool.until_models(lambda models: models["tiny"].wait)
    asked = asyncio.create_task(pool.chat())
    await asyncio.wait([asked], timeout=0.1)
    assert not asked.done()
    assert not pool.peer.submits
    pool.peer.publish([ready])
    assert (await asked)[0] == 200


async def test_a_request_for_a_model_that_no_engine_has_waits_in_the_scheduler(pool: Any) -> None:
    pool.peer.publish([starting(pool.peer.models[0])])
    await pool.until_models(lambda models: models["tiny"].phase == model_pb2.MODEL_PHASE_UNSPECIFIED)
    asked = asyncio.create_task(pool.chat())
    await pool.peer.until(lambda: bool(pool.peer.submits))
    assert (await asked)[0] == 200


def starting(model: pb.ModelStatus) -> pb.ModelStatus:
    """The same while there is no engine."""
    return pb.ModelStatus(spec=model.spec)


async def test_a_tokenizer_that_was_missing_is_loaded_again_once_an_engine_has_the_model(
    pool: Any, model_directory: Path, tmp_path: Path
) -> None:
    late = model_status("late", tmp_path / "late")
    pool.peer.publish([*pool.peer.models, starting(late)])
    await pool.until_models(lambda models: "late" in models)
    status, body, _ = await pool.chat(model="late")
    assert (status, body["error"]["code"]) == (503, "model_failed")
    assert pool.peer.texts == [], "without an engine it says nothing of the model"
    shutil.copytree(model_directory, tmp_path / "late")
    pool.peer.publish([late])
    await pool.until_models(lambda models: models["late"].phase == model_pb2.MODEL_PHASE_CACHED)
    assert (await pool.chat(model="late"))[0] == 200


async def test_an_overloaded_pool_answers_with_retry_after(pool: Any) -> None:
    pool.peer.reject = [pb.Rejected(code=pb.REJECT_CODE_OVERLOADED, reason="full", retry_after_s=2.5)]
    status, body, headers = await pool.chat(stream=True)
    assert (status, headers["Retry-After"], body["error"]["code"]) == (503, "3", "overloaded")


async def test_the_schedulers_other_refusals_have_their_own_status(pool: Any) -> None:
    pool.peer.reject = [
        pb.Rejected(code=pb.REJECT_CODE_UNKNOWN_MODEL),
        pb.Rejected(code=pb.REJECT_CODE_MODEL_FAILED, reason="bad shard"),
        pb.Rejected(code=pb.REJECT_CODE_TOO_LONG, reason="300 tokens do not fit 256"),
        pb.Rejected(code=pb.REJECT_CODE_INVALID, reason="logit_bias: the logits are not finite"),
        pb.Rejected(code=pb.REJECT_CODE_ENGINE, reason="the logits that m computed are not finite"),
    ]
    answers = [await pool.chat() for _ in range(5)]
    assert [status for status, _, _ in answers] == [404, 503, 400, 400, 500]
    assert all("not finite" in body["error"]["message"] for _, body, _ in answers[3:])
    assert "bad shard" in answers[1][1]["error"]["message"]


async def test_a_request_that_no_engine_can_serve_is_answered_with_its_models_failure(
    peer: Any, model_directory: Any, start_gateway: StartGateway
) -> None:
    async with start_gateway(hold_s=0.5) as pool:
        await pool.until_loaded("tiny")  # its tokenizer may take longer than a request is held
        peer.silent = True
        asked = asyncio.create_task(pool.chat())
        await peer.until(lambda: bool(peer.submits))
        peer.publish([model_status("tiny", model_directory, model_pb2.MODEL_PHASE_FAILED, reason="bad shard")])
        status, body, _ = await asked
        assert (status, body["error"]["code"]) == (503, "model_failed")
        assert "bad shard" in body["error"]["message"]


async def test_metrics_count_by_model_and_outcome(pool: Any) -> None:
    await pool.chat(max_tokens=5)
    await pool.chat(temperature=9)
    text = await pool.metrics()
    assert 'aegaeon_gateway_tokens_total{model="tiny"} 5.0' in text
    assert 'aegaeon_gateway_tokens_on_time_total{model="tiny"} 5.0' in text
    assert 'aegaeon_gateway_ttft_seconds_count{model="tiny"} 1.0' in text
    assert 'aegaeon_gateway_tbt_seconds_count{model="tiny"} 4.0' in text
    assert 'aegaeon_gateway_requests_total{model="tiny",outcome="ok"} 1.0' in text
    assert 'aegaeon_gateway_open_streams{model="tiny"} 0.0' in text


async def get(pool: Any, path: str) -> tuple[int, Any]:
    async with pool.http.get(pool.url + path) as response:
        return response.status, await response.json()


def picked(text: str) -> dict[str, float]:
    """What a stock endpoint picker takes: the first series of each of its three names."""
    lines = [line.split(" ") for line in text.splitlines() if line.startswith("vllm:")]
    assert len(lines) == 3, "one series each"
    return {name.removeprefix("vllm:"): float(value) for name, value in lines}


async def test_a_stock_picker_reads_queue_running_and_memory_live(pool: Any) -> None:
    async def scrape() -> dict[str, float]:
        async with pool.http.get(f"{pool.url}/metrics") as response:
            text = await response.text()
            assert "tiny" not in text, "models and tenants are on the port for metrics alone"
            return picked(text)

    await pool.until_models(lambda models: "tiny" in models)
    assert await scrape() == {"num_requests_waiting": 0, "num_requests_running": 0, "kv_cache_usage_perc": 0}
    pool.peer.serve_tokens = False
    asking = asyncio.create_task(pool.complete())
    await pool.peer.until(lambda: len(pool.peer.submits) == 1)
    pool.peer.reply(load=pb.PoolLoad(kv_used=0.25))
    pool.peer.publish(pool.peer.models)
    await pool.served.catalog.changed()
    assert await scrape() == {"num_requests_waiting": 1, "num_requests_running": 0, "kv_cache_usage_perc": 0.25}
    submit = pool.peer.submits[0]
    tokens = pool.peer.tokens_of(submit, submit.choices[0])
    await pool.peer.push(tokens[:1])
    await pool.peer.until(lambda: bool(pool.peer.acks))
    assert (await scrape())["num_requests_running"] == 1
    await pool.peer.push(tokens[1:])
    assert (await asking)[0] == 200
    assert await scrape() == {"num_requests_waiting": 0, "num_requests_running": 0, "kv_cache_usage_perc": 0.25}


async def test_an_answer_of_many_choices_with_logprobs_is_whole(pool: Any) -> None:
    status, body, _ = await pool.chat(n=128, logprobs=True, top_logprobs=20)
    assert status == 200
    assert [choice["index"] for choice in body["choices"]] == list(range(128))
    shown = [len(choice["logprobs"]["content"]) for choice in body["choices"]]
    assert shown == [shown[0]] * 128
    assert shown[0] > 0


async def test_a_prompt_tokenized_for_a_names_former_model_is_tokenized_again_and_answered(
    pool: Any, model_directory: Any
) -> None:
    """The scheduler has changed the model while the request was on its way; its catalog comes after its refusal."""
    former, new = (model_status("tiny", model_directory) for _ in range(2))
    former.spec.identity, new.spec.identity = "former", "new"
    peer = pool.peer
    peer.publish([former])
    assert (await pool.chat())[0] == 200
    assert peer.submits[-1].identity == "former"
    peer.submits.clear()
    peer.serve_tokens, peer.reject = False, [pb.Rejected(code=pb.REJECT_CODE_CHANGED)]
    asked = asyncio.create_task(pool.chat())
    await peer.until(lambda: bool(peer.submits))
    peer.publish([new])
    await peer.until(lambda: len(peer.submits) == 2)
    first, second = peer.submits
    assert (first.identity, second.identity) == ("former", "new")
    late = peer.tokens_of(first, first.choices[0])  # the former model was at it: its engine has not heard of the change
    await peer.push([pb.Token(seq=token.seq, epoch=1, index=token.index, token=99) for token in late])
    await peer.push(peer.tokens_of(second, second.choices[0]))
    status, body, _ = await asked
    assert (status, body["choices"][0]["message"]["content"]) == (200, TEXT)
