"""One submitted prompt and its choices, from submission to the last token, across any number of losses.

What has been received is the truth: whenever an engine, the scheduler or a stream is lost, the choices that are not
finished are submitted again with their received tokens and a higher epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from aegaeon_gateway.errors import ApiError, EngineError
from aegaeon_gateway.generation.assembly import Assembly
from aegaeon_gateway.generation.output import ChoiceOutput, Delta
from aegaeon_gateway.metrics import ModelMetrics
from aegaeon_gateway.request.prompt import Prompt
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1.model_pb2 import FINISH_REASON_ERROR, Limits, Sampling

MAX_LOSSES = 8
"""losses in a row without a single new token, after which a request is taken for one that kills engines"""


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked of an engine. Token k is due `ttft_s + k * tbt_s` seconds after the arrival."""

    request: str
    model: str
    prompt: Prompt
    sampling: Sampling
    limits: Limits
    ttft_s: float = 0.0
    tbt_s: float = 0.0
    identity: str = ""  # of the model that the prompt was made for


class Choice:
    """One sequence: its assembled tokens, and those of them that are not yet made into text (with receive times)."""

    __slots__ = ("assembly", "fresh", "last_at", "losses", "number", "output", "submitted")

    def __init__(self, number: int, limit: int, output: ChoiceOutput) -> None:
        self.number = number
        self.assembly = Assembly(limit)
        self.output = output
        self.fresh: list[tuple[pb.Token, float]] = []
        self.last_at = 0.0
        self.losses = 0
        self.submitted = False

    @property
    def open(self) -> bool:
        """An engine still has to work on it."""
        return self.assembly.finish is None and not self.output.stopped_here


class Generation:
    """A job while it is open. `wake` is set when there is something to drain or an error."""

    def __init__(
        self, job: Job, outputs: Iterable[ChoiceOutput], metrics: ModelMetrics, wake: asyncio.Event, now: float
    ) -> None:
        self.job = job
        self.choices = [Choice(number, job.limits.max_tokens, output) for number, output in enumerate(outputs)]
        self.arrived = now
        self.progress_at = now
        self.accepted = False
        self.error: ApiError | None = None
        self.retry_at: float | None = None
        self.gives_up_at: float | None = None
        self._metrics = metrics
        self._wake = wake

    @property
    def request(self) -> str:
        return self.job.request

    @property
    def started(self) -> bool:
        """Something of the answer has been received."""
        return any(choice.assembly.tokens for choice in self.choices)

    @property
    def moved(self) -> bool:
        """It was with an engine before: it has received tokens, or was submitted again after a loss."""
        return self.started or any(choice.assembly.epoch > 1 for choice in self.choices)

    @property
    def open_choices(self) -> list[Choice]:
        return [choice for choice in self.choices if choice.open]

    def accept(self, now: float) -> None:
        """The scheduler has it in its queue."""
        if not self.accepted and not self.started:
            self._metrics.queue_wait.observe(now - self.arrived)
        self.accepted = True
        self.progress_at = now

    def retry(self, now: float, delay_s: float) -> None:
        """The scheduler has no room for it at this moment: submit it again in a while. That it answered is progress."""
        self.accepted = False
        self.retry_at = now + delay_s
        self.progress_at = now

    def receive(self, token: pb.Token, now: float) -> bool:
        """Take a token from an engine; True when it brought anything new."""
        if token.seq.choice >= len(self.choices):
            return False
        choice = self.choices[token.seq.choice]
        ordered = choice.assembly.receive(token)
        if not ordered:
            return False
        choice.fresh.extend((one, now) for one in ordered)
        choice.losses = 0
        self.progress_at = now
        if choice.assembly.finish == FINISH_REASON_ERROR:
            self.gives_up_at = now + 0.5  # the scheduler is about to say why
        return True

    def lose(self, number: int, epoch: int, blameless: bool = False) -> Choice | None:
        """The engine of a choice is gone; return the choice when it is to be submitted again.

        `blameless`: the choice cannot have been the cause, so that others cannot use up its losses.
        """
        if number >= len(self.choices):
            return None
        choice = self.choices[number]
        if not choice.open or epoch != choice.assembly.epoch:
            return None
        choice.losses += not blameless
        if choice.losses > MAX_LOSSES:
            self.fail(EngineError(f"The engine was lost {choice.losses} times in a row on this request."))
            return None
        return choice

    def submission(self, choices: Sequence[Choice]) -> Submission:
        """These choices on their way to an engine: first with epoch 1, every further time with a higher one."""
        for choice in choices:
            if choice.submitted:
                choice.assembly.next_epoch()
            choice.submitted = True
        return Submission(self, [(choice, choice.assembly.epoch) for choice in choices])

    def fail(self, error: ApiError) -> None:
        """End with an error; the first one counts."""
        if self.error is None:
            self.error = error
        self._wake.set()

    def wake(self) -> None:
        """Tell the reader that there is something to drain."""
        self._wake.set()

    def drain(self) -> Iterator[tuple[Choice, Delta]]:
        """Turn what was received into deltas and score it."""
        for choice in self.choices:
            if choice.fresh:
                self._digest(choice)
                if (delta := choice.output.take()) is not None:
                    yield choice, delta

    def _digest(self, choice: Choice) -> None:
        fresh, choice.fresh = choice.fresh, []
        output = choice.output
        for token, at in fresh:
            before = output.tokens
            output.feed(token)
            if output.tokens > before:
                self._score(choice, before, at)

    def _score(self, choice: Choice, index: int, at: float) -> None:
        due = self.arrived + self.job.ttft_s + index * self.job.tbt_s
        before = choice.last_at if index else self.arrived
        self._metrics.token(gap_s=at - before, first=index == 0, on_time=at <= due)
        choice.last_at = at

    @property
    def done(self) -> bool:
        """Every choice has its end in a drained delta."""
        return all(choice.output.finish is not None for choice in self.choices)


@dataclass(frozen=True, slots=True)
class Submission:
    """Choices with the epochs that they are submitted with. The message is made when it is sent, not when it waits."""

    generation: Generation
    choices: Sequence[tuple[Choice, int]]

    def message(self, now: float) -> pb.GatewayMessage | None:
        """None when every choice was submitted again since."""
        job = self.generation.job
        message = pb.GatewayMessage()
        submit = message.submit  # filled in place: to put a long prompt into a message copies it
        for choice, epoch in self.choices:
            if choice.assembly.epoch == epoch:
                submit.choices.add(choice=choice.number, epoch=epoch, prefix=choice.assembly.tokens)
        if not submit.choices:
            return None
        submit.MergeFromString(job.prompt.field())
        submit.request = job.request
        submit.model, submit.identity = job.model, job.identity
        submit.sampling.CopyFrom(job.sampling)
        submit.limits.CopyFrom(job.limits)
        submit.age_s = now - self.generation.arrived
        return message
