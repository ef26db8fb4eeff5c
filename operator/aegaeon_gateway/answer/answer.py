"""The answer to one HTTP request while it is generated: all its prompts and choices as one thing to read from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from aegaeon_gateway.errors import ApiError
from aegaeon_gateway.generation.generation import Generation
from aegaeon_gateway.generation.output import Delta, Usage
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.generation.timing import Timing, longest
from aegaeon_gateway.metrics import ModelMetrics
from aegaeon_gateway.rpc.link import SchedulerLink
from aegaeon_gateway.tenancy import Charge

_AT_ONCE = 32
"""tokens of quota for each choice that goes on with it: fewer are used up by the time that it has a turn"""


class Answer:
    """Open inside `async with`; on leaving, whatever is not finished is cancelled and everything is freed."""

    def __init__(
        self, request: Request, link: SchedulerLink, metrics: ModelMetrics, charge: Charge | None = None
    ) -> None:
        """`charge`: to the quotas of tokens that count for it, None where there are none."""
        self._link = link
        self._charge = charge
        self._wake = asyncio.Event()
        self._direct: Callable[[], bool] | None = None
        self._fault: Exception | None = None
        spend = None if charge is None else charge.spend
        self._generations = [
            Generation(request, number, metrics, self._arrived, self.wake, spend)
            for number in range(len(request.prompts))
        ]
        if charge is not None:
            charge.refilled = self.wake
        self.prompt_tokens = request.prompt_tokens
        """those that are billed, however it ends"""
        self.model = request.model
        self.choices = len(request.prompts) * request.options.n

    async def __aenter__(self) -> Answer:
        for generation in self._generations:
            self._link.open(generation)
        return self

    async def __aexit__(self, *exception: object) -> None:
        for generation in self._generations:
            self._link.close(generation)
            generation.account(time.monotonic())

    async def wait(self, direct: Callable[[], bool] | None = None) -> None:
        """Until there is something to drain or an error.

        `direct` is called where new tokens arrive meanwhile; the wait goes on while it says that it has dealt with all.
        What it raises is raised here.
        """
        self._direct = direct
        try:
            await self._wake.wait()
        finally:
            self._direct = None
        self._wake.clear()
        if self._fault is not None:
            raise self._fault

    def _arrived(self) -> None:
        if self._direct is None or self._wake.is_set() or not self._dealt_with(self._direct):
            self._wake.set()

    def _dealt_with(self, direct: Callable[[], bool]) -> bool:
        try:
            return direct()
        except Exception as fault:  # noqa: BLE001  # of this answer, not of the engine's stream; `wait` raises it
            self._fault = fault
            return False

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
        if self._charge is not None:
            self._keep_within(self._charge)

    def _keep_within(self, charge: Charge) -> None:
        """Engines work on as many choices as there is quota for: on none when it is used up."""
        if charge.dry:
            for generation in self._generations:
                self._link.hold(generation)
            return
        may = max(int(charge.credit / _AT_ONCE), 1)
        for generation in self._generations:
            if going_on := generation.held_choices[:may]:
                may -= len(going_on)
                self._link.resume(generation, going_on)

    @property
    def held(self) -> bool:
        """Its quota is used up."""
        return self._charge is not None and self._charge.dry

    @property
    def accepted(self) -> bool:
        """The scheduler has all of it in its queue, or had."""
        return all(generation.accepted or generation.started for generation in self._generations)

    @property
    def place(self) -> int:
        """In the queue, of what is last there; 0 when nothing is, or nothing is known of it."""
        return max(0 if generation.started else generation.place for generation in self._generations)

    @property
    def timing(self) -> Timing:
        """The durations so far, each the longest of its choices."""
        return longest(timing for generation in self._generations for timing in generation.timings)

    @property
    def finishes(self) -> list[str]:
        """Why the choices that are over ended."""
        finishes = (choice.output.finish for generation in self._generations for choice in generation.choices)
        return [finish for finish in finishes if finish is not None]

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
        output, reasoned = sum(each.tokens for each in outputs), sum(each.reasoning_tokens for each in outputs)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": output,
            "total_tokens": self.prompt_tokens + output,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoned},
        }
