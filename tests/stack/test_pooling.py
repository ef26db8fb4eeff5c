"""Embeddings and rankings beside chats on one engine with room for some of the models, and when it is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from numpy.typing import NDArray
from stack.launch import manifests, running
from stack.traffic import PROMPTS, stream, until_empty

from aegaeon_cli.demo.stack import Stack

TEXTS = [f"{prompt} {number}" for number in range(12) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def stack(four_models: dict[str, Path], embedder: Path, reranker: Path) -> Iterator[Stack]:
    models = {"chat": four_models["qwen3"], "embed": embedder, "rank": reranker}
    with running(manifests(models, engines=1, device="1Mi")) as stack:
        yield stack


def loaded(kind: Any, directory: Path) -> Callable[..., Any]:
    """transformers' model of a folder, asked with texts as the folder's tokenizer splits them."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    model = kind.from_pretrained(directory, dtype=torch.float32)

    def ask(*texts: str) -> Any:
        with torch.no_grad():
            return model(torch.tensor([tokenizer(*texts)["input_ids"]]))

    return ask


def embedded(directory: Path, texts: Sequence[str]) -> NDArray[np.float32]:
    from transformers import AutoModel

    ask = loaded(AutoModel, directory)
    rows = np.stack([ask(text).last_hidden_state[0, -1].numpy() for text in texts])
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


async def vectors(client: openai.AsyncOpenAI, texts: list[str]) -> NDArray[np.float32]:
    answer = await client.embeddings.create(model="embed", input=texts)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > len(texts)
    return np.array([one.embedding for one in answer.data], dtype=np.float32)


async def ranked(client: openai.AsyncOpenAI, query: str, documents: list[str]) -> dict[str, float]:
    body = {"model": "rank", "query": query, "documents": documents}
    answer: Any = await client.post("/rerank", body=body, cast_to=object)
    scores = {one["document"]["text"]: one["relevance_score"] for one in answer["results"]}
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    return scores


async def test_chats_embeddings_and_rankings_share_an_engine(
    stack: Stack, client: openai.AsyncOpenAI, embedder: Path, reranker: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    alone = [await stream(client, "chat", prompt) for prompt in PROMPTS]
    chats = asyncio.gather(*(stream(client, "chat", prompt) for prompt in PROMPTS))
    got, scores = await asyncio.gather(vectors(client, TEXTS), ranked(client, "fox", TEXTS[:6]))
    assert await chats == alone
    assert np.allclose(got, embedded(embedder, TEXTS), rtol=1e-3, atol=1e-5)
    ask = loaded(AutoModelForSequenceClassification, reranker)
    for document, score in scores.items():
        assert score == pytest.approx(float(ask("fox", document).logits[0].sigmoid()), abs=1e-5)
    await until_empty(stack)


async def test_nothing_is_lost_with_an_engine(stack: Stack, client: openai.AsyncOpenAI) -> None:
    """What it had not sent is computed again, once it has come again."""
    before, scores = await vectors(client, TEXTS), await ranked(client, "fox", TEXTS)
    chat = await stream(client, "chat", PROMPTS[0])
    begun = asyncio.Event()
    talk = asyncio.create_task(stream(client, "chat", PROMPTS[0], begun.set))
    await begun.wait()
    asked = asyncio.gather(vectors(client, TEXTS), ranked(client, "fox", TEXTS))
    stack.kill("engine-0")
    assert await talk == chat
    after, again = await asked
    assert np.array_equal(after, before)
    assert again == scores
    await until_empty(stack)
