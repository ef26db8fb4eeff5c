"""The answer to one HTTP request while it is generated: all its prompts and choices as one thing to read from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import TracebackType

from aegaeon_gateway.errors import ApiError
from aegaeon_gateway.generation.generation import Generation
from aegaeon_gateway.generation.output import Delta, Usage
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.metrics import ModelMetrics
from aegaeon_gateway.rpc.link import SchedulerLink


class Answer:
    """Open inside `async with`; on leaving, whatever is not finished is cancelled and everything is freed."""

    def __init__(self, request: Request, link: SchedulerLink, metrics: ModelMetrics) -> None:
        self._link = link
        self._wake = asyncio.Event()
        self._generations = [Generation(request, number, metrics, self._wake) for number in range(len(request.prompts))]
        self._prompt_tokens = request.prompt_tokens
        self.model = request.model

    async def __aenter__(self) -> Answer:
        for generation in self._generations:
            self._link.open(generation)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for generation in self._generations:
            self._link.close(generation)
            generation.account()

    async def wait(self) -> None:
        """Until there is something to drain or an error."""
        await self._wake.wait()
        self._wake.clear()

    def wake(self) -> None:
        """End a wait: another event must be handled."""
        self._wake.set()

    def drain(self) -> Iterator[Delta]:
        """Everything new, in the order of choices. A choice that met a stop string is cancelled at its engine."""
        for generation in self._generations:
            for choice, delta in generation.drain():
                if choice.output.stopped_here and delta.finish and choice.finish is None:
                    self._link.cancel(generation, [choice])
                yield delta

    @property
    def error(self) -> ApiError | None:
        return next((generation.error for generation in self._generations if generation.error), None)

    @property
    def done(self) -> bool:
        return all(generation.done for generation in self._generations)

    @property
    def usage(self) -> Usage:
        """OpenAI's usage object, in tokens. Each prompt counts once, whatever n is; what any choice computed counts."""
        cached = sum(min(c.cached_tokens for c in g.choices) for g in self._generations)
        outputs = [choice.output for generation in self._generations for choice in generation.choices]
        output, reasoned = sum(one.tokens for one in outputs), sum(one.reasoning_tokens for one in outputs)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": output,
            "total_tokens": self._prompt_tokens + output,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoned},
        }
