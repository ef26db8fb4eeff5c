"""Distributes the results of a completed step: tokens to sequences and gateways, ends and failures to the report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from aegaeon_proto.engine.reports import FailureKind
from aegaeon_proto.engine.sequences import Finish
from aegaeon_proto.engine.tokens import Token
from aegaeon_sidecar.engine.step import Step
from aegaeon_sidecar.engine.turn import Turn
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.kv.sequences import Sequence
from aegaeon_sidecar.sampling import Chosen, NotFinite, Picked, Pooled, Refused, Sampled, Scored
from aegaeon_sidecar.weights.models import Model

log = logging.getLogger(__name__)

NO_TEXT = 0  # the token in place of text
PushTokens = Callable[[str, list[Token]], None]


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a sequence ends without its next token."""

    kind: FailureKind
    reason: str


Kept = Union[Picked, Pooled, Failure]
Judged = Union[Sampled, Pooled, Failure, None]
Result = Union[Chosen, Failure]


class Outputs:
    """Used by the compute lane's thread alone."""

    def __init__(self, kv: KvMemory, push: PushTokens) -> None:
        self._kv = kv
        self._push = push

    def deliver(self, step: Step, results: list[Result]) -> None:
        """Record a completed step. Without results it keeps nothing."""
        with self._kv.monitor.changed:
            step.model.users -= 1
            for sequence in step.sequences:
                sequence.busy -= 1
                if sequence.closed:
                    self._kv.sequences.free_if_closed(sequence)
            tokens: dict[str, list[Token]] = {}
            now = time.monotonic()
            for sequence, result in zip(step.sequences, results, strict=False):
                token = None if sequence.closed else self._record(step, sequence, result, now)
                if token is not None:
                    tokens.setdefault(sequence.reply_to, []).append(token)
            for target, some in tokens.items():
                self._push(target, some)
            self._kv.monitor.notify()

    def _record(self, step: Step, sequence: Sequence, result: Result, now: float) -> Token | None:
        """Record a sequence's result of the step; returns the token for its gateway."""
        judged = _judged(step.model, _kept(sequence, result))
        if isinstance(judged, Failure):
            return self._fail(step.turn, sequence, judged)
        sequence.idle_since_s = now
        self._advance(sequence, step.tokens_of(sequence))
        token = None if judged is None else _accepted(sequence, judged)
        if token is None or token.finish is None:
            step.turn.progress.advanced(sequence)
        else:
            step.turn.end(sequence, token.finish)
            self._kv.sequences.remove(sequence.key)
        return token

    def _fail(self, turn: Turn, sequence: Sequence, failure: Failure) -> Token | None:
        """End this sequence only, without its results of this step. Where the fault may be the engine's its gateway
        waits: another engine may succeed. Else it is sent a marker without a token; the scheduler has the reason."""
        log.warning("%s choice %d ends: %s", sequence.key.request, sequence.key.choice, failure.reason)
        turn.end(sequence, Finish.ERROR, failure.reason, failure.kind)
        self._kv.sequences.remove(sequence.key)
        if failure.kind is FailureKind.ENGINE:
            return None
        return Token(sequence.key, sequence.epoch, len(sequence.output), finish=Finish.ERROR)

    def _advance(self, sequence: Sequence, computed: int) -> None:
        before = sequence.kv_tokens // sequence.block_tokens
        sequence.kv_tokens += computed
        if sequence.seed and sequence.kv_tokens // sequence.block_tokens > before:
            self._kv.sequences.publish(self._kv.device, sequence, before)


def _kept(sequence: Sequence, result: Result) -> Kept:
    """Store the logprobs of the prompt in the sequence; returns the choice."""
    chosen = result.chosen if isinstance(result, Scored) else result
    if sequence.scored is None:
        return chosen
    if isinstance(result, Scored):
        sequence.scored[sequence.kv_tokens :] = result.prompt
    if sequence.output or not isinstance(chosen, Sampled):
        return chosen
    if len(sequence.scored) == len(sequence.prompt) - 1:
        return chosen
    return Failure(FailureKind.ENGINE, "a part of the prompt was computed on another engine, which has its logprobs")


def _judged(model: Model, result: Kept) -> Judged:
    """Check a result: no id outside the vocabulary reaches a prompt or a client."""
    if isinstance(result, Sampled):
        size = model.layout.vocab_size if model.layout is not None else 0
        if result.token >= 0 and (result.token < size or not size):
            return result
        return Failure(FailureKind.ENGINE, f"a step of {model.name} chose token {result.token} of {size}")
    if isinstance(result, Refused):
        return Failure(FailureKind.ENGINE if result.ours else FailureKind.INVALID, result.reason)
    if not isinstance(result, NotFinite):
        return result
    if result.by_request:
        reason = "the logits are not finite with the penalties, logit_bias and min_tokens of the request"
        return Failure(FailureKind.INVALID, reason)
    what = "outputs" if model.layout is not None and model.layout.pools else "logits"
    return Failure(FailureKind.NOT_FINITE, f"the {what} that {model.name} computed are not finite")


def _accepted(sequence: Sequence, judged: Sampled | Pooled) -> Token:
    """The sequence's next token, for the gateway."""
    if not sequence.output:
        sequence.prefill_s = sequence.idle_since_s - sequence.begun_s
    index = sequence.accept(judged if isinstance(judged, Sampled) else Sampled(NO_TEXT))
    token = token_of(sequence, index, _finish(sequence))
    if isinstance(judged, Pooled):
        token.pooled = judged.values.astype("<f4").tobytes()
    sequence.stall_s = 0.0
    return token


def _finish(sequence: Sequence) -> Finish | None:
    if sequence.pooling is not None or sequence.output[-1] in sequence.stop_ids:
        return Finish.STOP
    if len(sequence.output) >= sequence.max_output:
        return Finish.LENGTH
    return None


def token_of(sequence: Sequence, index: int, finish: Finish | None = None) -> Token:
    """Output token `index`, which was sampled here, for the gateway."""
    key, epoch, token = sequence.key, sequence.epoch, sequence.output[index]
    logprob, top = sequence.logprobs.get(index, (None, ()))
    if index:
        return Token(key, epoch, index, token, logprob, top, finish, stall_s=sequence.stall_s)
    scored = tuple(sequence.scored or ())
    times = sequence.prefill_s, sequence.load_s
    return Token(key, epoch, index, token, logprob, top, finish, sequence.reused, scored, *times)
