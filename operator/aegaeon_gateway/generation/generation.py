"""One submitted prompt and its choices, from submission to the last token, across any number of losses.

What has been received is the truth: whenever an engine, the scheduler or a stream is lost, the choices that are not
finished are submitted again with their received tokens and a higher epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf

from aegaeon_gateway.errors import ApiError, EngineError
from aegaeon_gateway.generation.choice import Choice
from aegaeon_gateway.generation.output import Delta, Output
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.generation.timing import Timing
from aegaeon_gateway.metrics import ModelMetrics, Times
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1.model_pb2 import FINISH_REASON_ERROR

MAX_LOSSES = 8
"""losses in a row without a single new token, after which a request is taken for one that kills engines"""
END_GRACE_S = 2.0
"""seconds without a token after which those of a sequence that has ended at its engine are taken for lost"""


class Generation:
    """Prompt `number` of a request while it is open; its choices share the prompt. `arrived` is called when there is
    something to drain, `changed` for what else its reader must know. `spend`: says how many of so many tokens may be
    served now, None: all; the others wait."""

    def __init__(
        self,
        request: Request,
        number: int,
        metrics: ModelMetrics,
        arrived: Callable[[], None],
        changed: Callable[[], None],
        spend: Callable[[int], int] | None = None,
    ) -> None:
        self.request = request
        self.id = request.submit_id(number)
        self.prompt = request.prompts[number]
        self.limits = request.limits[number]
        self._public_tokens = request.public[number] if request.public else 0
        self.choices = [
            Choice(at, self.limits.max_tokens, output, request.spec.tbt_s)
            for at, output in enumerate(_outputs(request, number))
        ]
        self.progress_at = request.arrived
        self.sent = False
        """a scheduler may have read of it"""
        self.accepted = False
        self.place = 0
        """in the queue, from 1 on; 0 while nothing is known of it"""
        self.error: ApiError | None = None
        self.retry_at: float | None = None
        self.gives_up_at: float | None = None
        self._metrics = metrics
        self._arrived, self._changed, self._spend = arrived, changed, spend

    @property
    def started(self) -> bool:
        """Something of the answer has been received."""
        return any(choice.tokens for choice in self.choices)

    @property
    def moved(self) -> bool:
        """True when it was with an engine before: it has received tokens, or was submitted again after a loss."""
        return self.started or any(choice.epoch > 1 for choice in self.choices)

    @property
    def open_choices(self) -> list[Choice]:
        """The choices that engines are to work on now."""
        return [choice for choice in self.choices if choice.open and choice.held_at is None]

    @property
    def held_choices(self) -> list[Choice]:
        """The choices that wait for their quota."""
        return [choice for choice in self.choices if choice.open and choice.held_at is not None]

    # ---- to and from the scheduler ----------------------------------------------------------------------------------

    def submit(self, choices: Iterable[Choice], now: float, message: pb.GatewayMessage) -> None:
        """Make an empty message the one that submits these choices, all with the one prompt."""
        self.sent = True
        request = self.request
        submit = message.submit  # filled in place: to put a long prompt into a message copies it
        for choice in choices:
            submit.choices.add(choice=choice.number, epoch=choice.epoch, prefix=choice.tokens)
        submit.MergeFromString(self.prompt.field())
        submit.request = self.id
        submit.model, submit.identity = request.spec.name, request.spec.identity
        submit.sampling.CopyFrom(request.sampling)
        submit.limits.CopyFrom(self.limits)
        if request.options.pooled is not None:
            submit.pooling.SetInParent()
            submit.pooling.logits_of.extend(request.options.pooled.logits_of)
        paused_s = min((self.choices[submitted.choice].paused_s for submitted in submit.choices), default=0.0)
        submit.age_s = max(now - request.arrived - paused_s, 0.0)
        submit.traceparent = request.marks.traceparent
        submit.tenant, submit.defer_s, submit.priority = request.tenant, request.defer_s, request.options.priority
        if request.terms is not None:
            submit.terms.CopyFrom(request.terms)
        submit.salt, submit.public_tokens = request.salt, self._public_tokens

    def accept(self, now: float) -> None:
        """The scheduler has it in its queue."""
        if not self.accepted and not self.started:
            self._metrics.queue_wait.observe(now - self.request.arrived)
        self.accepted = True
        self.progress_at = now
        self._changed()

    def retry(self, now: float, delay_s: float) -> None:
        """The scheduler has no room for it at this moment: submit it again in a while. That it answered is progress."""
        self.accepted = False
        self.retry_at = now + delay_s
        self.progress_at = now

    def lose(self, number: int, epoch: int, blameless: bool = False) -> Choice | None:
        """The engine of a choice is gone; return the choice when it is to be submitted again.

        `blameless`: the choice cannot have been the cause, so that others cannot use up its losses.
        """
        if number >= len(self.choices):
            return None
        choice = self.choices[number]
        if not choice.open or choice.held_at is not None or epoch != choice.epoch:
            return None
        choice.losses += not blameless
        if choice.losses > MAX_LOSSES:
            self.fail(EngineError(f"The engine was lost {choice.losses} times in a row on this request."))
            return None
        return choice

    def is_complete(self, number: int) -> bool:
        """True when no engine has to work on a choice any more."""
        return number < len(self.choices) and not self.choices[number].open

    def ended(self, number: int, epoch: int, now: float) -> None:
        """An engine has computed all of a choice: its last tokens are on their way, or were lost with the engine."""
        if number < len(self.choices) and (choice := self.choices[number]).open and choice.epoch == epoch:
            choice.ended_at = now

    def truncated(self, now: float) -> list[Choice]:
        """The choices whose last tokens do not come any more."""
        return [choice for choice in self.open_choices if choice.ended_at and now - choice.ended_at > END_GRACE_S]

    def fail(self, error: ApiError) -> None:
        """End with an error; the first one counts."""
        if self.error is None:
            self.error = error
        self._changed()

    # ---- tokens in, deltas out -------------------------------------------------------------------------------------

    def receive(self, token: pb.Token, now: float) -> bool:
        """Take a token from an engine; True when it brought anything new."""
        if token.seq.choice >= len(self.choices):
            return False
        choice = self.choices[token.seq.choice]
        if not choice.receive(token, now):
            return False
        self.progress_at = now
        if choice.finish == FINISH_REASON_ERROR:
            self.gives_up_at = now + 0.5  # the scheduler is about to say why
        return True

    def wake(self) -> None:
        """Tell the reader that there is something to drain."""
        self._arrived()

    def drain(self) -> Iterator[tuple[Choice, Delta]]:
        """Turn what was received into deltas and score it."""
        for choice in self.choices:
            if choice.fresh:
                self._digest(choice)
                if (delta := choice.output.take()) is not None:
                    yield choice, delta

    def _digest(self, choice: Choice) -> None:
        fresh = choice.fresh
        served = len(fresh) if self._spend is None else self._spend(len(fresh))
        choice.fresh = fresh[served:]
        output = choice.output
        for token, at in fresh[:served]:
            before = output.tokens
            output.feed(token)
            if output.tokens > before or token.pooled:
                self._score(choice, before, at)

    def _score(self, choice: Choice, index: int, at: float) -> None:
        request = self.request
        due = self._due(choice) + index * request.spec.tbt_s
        before = choice.last_at if index else request.arrived
        if request.defer_s:
            self._metrics.deferred_token(on_time=at <= due)
        else:
            self._metrics.token(gap_s=at - before, first=index == 0, on_time=at <= due)
        choice.last_at = at
        if index == 0:
            choice.first_at = at

    def _due(self, choice: Choice) -> float:
        """When its first token is."""
        request = self.request
        return request.arrived + request.defer_s + choice.paused_s + request.spec.ttft_s

    def _missed(self, choice: Choice, now: float) -> int:
        """Tokens that were due by now of an answer that did not end, and have not come: up to its limit, as how long it
        would have been is not known."""
        late_s = (choice.held_at or now) - self._due(choice)
        if not choice.open or late_s < 0:
            return 0
        due = 1 + int(late_s / (self.request.spec.tbt_s or inf))
        return max(0, min(due, choice.limit) - len(choice.tokens))

    @property
    def timings(self) -> Iterator[Timing]:
        """Timings of the choices that have a token, or a vector in its place."""
        arrived = self.request.arrived
        for choice in self.choices:
            if choice.first_at:
                first_s, whole_s = choice.first_at - arrived, choice.last_at - arrived
                yield Timing.of(first_s, whole_s, choice.load_s, choice.prefill_s, choice.stall_s)

    def account(self, now: float) -> None:
        """Put its choices' ends and durations into the metrics; it is over, however it ended."""
        arrived, prompt = self.request.arrived, self.prompt.tokens
        for choice in self.choices:
            self._metrics.missed.inc(self._missed(choice, now))
            tokens = choice.output.tokens
            if tokens or choice.first_at:
                first, last = choice.first_at, choice.last_at
                times = Times(last - arrived, first - arrived - choice.prefill_s, choice.prefill_s, last - first)
                reason = choice.output.finish or "abort"
                self._metrics.finished(reason, times, prompt, choice.cached_tokens, tokens)

    @property
    def done(self) -> bool:
        """Every choice has its end in a drained delta."""
        return all(choice.output.finish is not None for choice in self.choices)


def _outputs(request: Request, number: int) -> Iterator[Output]:
    n = request.options.n
    return (Output(number * n + at, request.vocabulary, request.options) for at in range(n))
