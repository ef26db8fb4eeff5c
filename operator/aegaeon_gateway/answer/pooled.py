"""Vectors that models compute of prompts, gathered and rendered: embeddings, and scores of documents."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from aegaeon_gateway.errors import EngineError
from aegaeon_gateway.generation.generation import Generation
from aegaeon_gateway.generation.output import Usage
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.generation.timing import Timing, longest
from aegaeon_gateway.metrics import ModelMetrics
from aegaeon_gateway.rpc.link import SchedulerLink
from aegaeon_gateway.workers.wire import Pooled

Json = dict[str, Any]
Vector = NDArray[np.float32]
WINDOW = 64
"""prompts of one request that are with the scheduler at a time: others' are between them"""
_FLOAT_BYTES = 4
_IN_TURN = 16  # results that are rendered before other streams go on


class Pooling:
    """The prompts of one HTTP request while engines compute them. Open inside `async with`; on leaving, whatever is not
    finished is cancelled and everything is freed."""

    def __init__(self, request: Request, link: SchedulerLink, metrics: ModelMetrics) -> None:
        self._request = request
        self._link = link
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._next = 0
        self._open: dict[int, Generation] = {}
        self._results: dict[int, bytes] = {}
        self._cached_tokens = 0
        self.timing = Timing()
        """what took how long, the longest of its prompts that are over"""
        self.finishes: list[str] = []
        """why its prompts that are over ended, each reason once"""

    async def __aenter__(self) -> Pooling:
        return self

    async def __aexit__(self, *exception: object) -> None:
        for number in list(self._open):
            self._close(number)

    async def results(self) -> list[Vector]:
        """Wait for the vectors of all prompts, in order. Raises ApiError."""
        total = len(self._request.prompts)
        while len(self._results) < total:
            self._fill(total)
            await self._wake.wait()
            self._wake.clear()
            for number in list(self._open):
                self._collect(number)
        return [np.frombuffer(self._results[number], dtype="<f4") for number in range(total)]

    @property
    def prompt_tokens(self) -> int:
        """Tokens that are billed: of the prompts that were computed so far."""
        return sum(self._request.prompts[number].tokens for number in self._results)

    @property
    def usage(self) -> Usage:
        """OpenAI's usage object, in tokens: nothing is output."""
        tokens = self._request.prompt_tokens
        return {
            "prompt_tokens": tokens,
            "completion_tokens": 0,
            "total_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }

    def _fill(self, total: int) -> None:
        while len(self._open) < WINDOW and self._next < total:
            generation = Generation(self._request, self._next, self._metrics, self._wake.set, self._wake.set)
            self._open[self._next] = generation
            self._next += 1
            self._link.open(generation)

    def _collect(self, number: int) -> None:
        """Raises ApiError."""
        generation = self._open[number]
        if generation.error is not None:
            raise generation.error
        for _, delta in generation.drain():
            self._results[number] = _checked(delta.pooled)
        if generation.done:
            self._close(number)

    def _close(self, number: int) -> None:
        generation = self._open.pop(number)
        self._link.close(generation)
        generation.account(time.monotonic())
        self.timing = longest((self.timing, *generation.timings))
        for choice in generation.choices:
            self._cached_tokens += choice.cached_tokens
            if (finish := choice.output.finish) is not None and finish not in self.finishes:
                self.finishes.append(finish)


def _checked(pooled: bytes) -> bytes:
    """Raises EngineError for what is no float32 at all."""
    if not pooled or len(pooled) % _FLOAT_BYTES:
        raise EngineError("The engine gave no numbers; sidecars and gateways must be of one version.")
    return pooled


async def embeddings(request: Request, pooled: Pooled, vectors: Sequence[Vector]) -> bytes:
    """The body of /v1/embeddings."""
    pieces = []
    for number, vector in enumerate(vectors):
        data = {"object": "embedding", "index": number, "embedding": _written(_shaped(vector, pooled), pooled)}
        pieces.append(orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY))
        if not number % _IN_TURN:
            await asyncio.sleep(0)
    head = {"object": "list", "id": request.id, "created": int(time.time()), "model": request.model}
    return _framed(head, b"data", pieces, {"usage": _usage(request)})


async def scores(request: Request, pooled: Pooled, vectors: Sequence[Vector]) -> bytes:
    """The body of /score."""
    data = [
        orjson.dumps({"index": number, "object": "score", "score": score})
        for number, score in enumerate(_scores(pooled, vectors))
    ]
    head = {"object": "list", "id": request.id, "created": int(time.time()), "model": request.model}
    return _framed(head, b"data", data, {"usage": _usage(request)})


async def ranking(request: Request, pooled: Pooled, vectors: Sequence[Vector]) -> bytes:
    """The body of /rerank: the best document first."""
    relevance = list(_scores(pooled, vectors))
    order = sorted(range(len(relevance)), key=lambda number: (-relevance[number], number))
    results = [orjson.dumps(_result(request, number, relevance[number])) for number in order[: pooled.top_n or None]]
    usage = {"prompt_tokens": request.prompt_tokens, "total_tokens": request.prompt_tokens}
    return _framed({"id": request.id, "model": request.model, "usage": usage}, b"results", results, {})


def _result(request: Request, number: int, score: float) -> Json:
    """With the document, unless the client does not want it back."""
    result: Json = {"index": number, "relevance_score": score}
    if request.texts:
        result["document"] = {"text": request.texts[number], "multi_modal": None}
    return result


def _framed(head: Json, name: bytes, pieces: Sequence[bytes], tail: Json) -> bytes:
    end = b"," + orjson.dumps(tail)[1:] if tail else b"}"
    return orjson.dumps(head)[:-1] + b',"%b":[' % name + b",".join(pieces) + b"]" + end


def _usage(request: Request) -> Json:
    tokens = request.prompt_tokens
    return {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens, "prompt_tokens_details": None}


def _shaped(vector: Vector, pooled: Pooled) -> Vector:
    """Cut first: it is what is left that has length 1."""
    kept = vector[: pooled.dimensions] if pooled.dimensions else vector
    return _unit(kept) if pooled.normalize else kept


def _unit(vector: Vector) -> Vector:
    return vector / max(np.linalg.norm(vector), np.float32(1e-12))


def _written(vector: Vector, pooled: Pooled) -> str | Vector:
    if pooled.base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return np.ascontiguousarray(vector)


def _scores(pooled: Pooled, vectors: Sequence[Vector]) -> Iterator[float]:
    if pooled.pairs:
        units = [_unit(vector) for vector in vectors]
        yield from (float(units[first] @ units[second]) for first, second in pooled.pairs)
        return
    for vector in vectors:
        # Of two logits the second one's share; of one the logistic function, which is the same of a difference.
        logit = float(vector[1]) - float(vector[0]) if len(vector) > 1 else float(vector[0])
        yield _sigmoid(logit) if pooled.sigmoid else logit


def _sigmoid(x: float) -> float:
    return float(np.exp(-np.logaddexp(0.0, -x)))
