"""The official client against the gateway: what people will do first."""

from __future__ import annotations

from typing import Any

import openai

from aegaeon_cli.demo import clients

TEXT = "Größe 🙂, 数字 and the quick brown fox; tokens are scheduled one by one."
HI: Any = [{"role": "user", "content": "hi"}]


def client_of(pool: Any) -> openai.AsyncOpenAI:
    return clients.async_client(pool.url)


async def test_a_chat_is_answered_completely(pool: Any) -> None:
    async with client_of(pool) as client:
        answer = await client.chat.completions.create(model="tiny", messages=HI, seed=7, temperature=0.5)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    submit = pool.peer.submits[0]
    assert answer.usage.prompt_tokens == len(submit.prompt)
    assert answer.usage.completion_tokens == len(pool.peer.say(submit, 0))
    assert submit.sampling.seed == 7
    assert list(submit.limits.stop_ids) == [2]
    assert submit.limits.max_tokens == 256 - len(submit.prompt)


async def test_a_chat_is_streamed_with_role_content_finish_and_usage(pool: Any) -> None:
    async with client_of(pool) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(pool.peer.say(pool.peer.submits[0], 0))
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_completions_stream_and_echo(pool: Any) -> None:
    async with client_of(pool) as client:
        stream = await client.completions.create(model="tiny", prompt="Say: ", max_tokens=200, echo=True, stream=True)
        chunks = [chunk async for chunk in stream]
        whole = await client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=200, echo=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Say: " + TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert [choice.text for choice in whole.choices] == ["a" + TEXT, "a" + TEXT, "b" + TEXT, "b" + TEXT]
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]


async def test_choices_interleave_and_keep_their_index(pool: Any, tokenizer: Any) -> None:
    pool.peer.say = lambda submit, choice: [*tokenizer.encode(f"choice {choice} {TEXT}").ids, 2]
    async with client_of(pool) as client:
        stream = await client.chat.completions.create(model="tiny", messages=HI, stream=True, n=3)
        texts = ["", "", ""]
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [f"choice {choice} {TEXT}" for choice in range(3)]


async def test_logprobs_of_a_chat_have_tokens_bytes_and_likeliest(pool: Any, tokenizer: Any) -> None:
    async with client_of(pool) as client:
        answer = await client.chat.completions.create(model="tiny", messages=HI, logprobs=True, top_logprobs=2)
        stream = await client.chat.completions.create(
            model="tiny", messages=HI, logprobs=True, top_logprobs=2, stream=True
        )
        streamed = [
            entry
            async for chunk in stream
            if chunk.choices[0].logprobs
            for entry in chunk.choices[0].logprobs.content or []
        ]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert bytes(byte for entry in logprobs.content for byte in entry.bytes or []).decode() == TEXT
    assert all(len(entry.top_logprobs) == 2 and entry.logprob == -0.5 for entry in logprobs.content)
    assert streamed == logprobs.content
    assert len(streamed) == len(tokenizer.encode(TEXT).ids)


async def test_logprobs_of_completions_have_offsets_into_the_text(pool: Any) -> None:
    async with client_of(pool) as client:
        answer = await client.completions.create(model="tiny", prompt="x", logprobs=2, max_tokens=200)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    for token, offset in zip(logprobs.tokens or [], logprobs.text_offset or [], strict=True):
        assert token.startswith("bytes:") or TEXT[offset : offset + len(token)] == token
    assert all(len(likeliest) == 2 for likeliest in logprobs.top_logprobs or [])


async def test_a_stop_string_cuts_the_answer_and_cancels_the_engine(pool: Any, tokenizer: Any) -> None:
    async with client_of(pool) as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=HI, stop=["brown fox", "nowhere"], logprobs=True
        )
        stream = await client.chat.completions.create(model="tiny", messages=HI, stop="brown fox", stream=True)
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    expected = TEXT[: TEXT.index("brown fox")]
    assert answer.choices[0].message.content == streamed == expected
    assert answer.choices[0].finish_reason == "stop"
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert bytes(byte for entry in logprobs.content or [] for byte in entry.bytes or []).decode().startswith(expected)
    assert answer.usage is not None
    billed = tokenizer.decode(tokenizer.encode(TEXT).ids[: answer.usage.completion_tokens])
    assert "brown fox" in billed
    assert "brown fox" not in tokenizer.decode(tokenizer.encode(TEXT).ids[: answer.usage.completion_tokens - 1])


async def test_max_tokens_ends_with_length(pool: Any) -> None:
    async with client_of(pool) as client:
        answer = await client.chat.completions.create(model="tiny", messages=HI, max_completion_tokens=4)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
