"""Distributes the results of a completed step: tokens to sequences and gateways, ends and failures to the report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from aegaeon_sidecar.domain.reports import FailureKind, Token
from aegaeon_sidecar.domain.sequences import Finish
from aegaeon_sidecar.engine.progress import TurnProgress
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
    """Why a sequence ends without its next token."""

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

    def deliver(
        self,
        model: Model,
        sequences: list[Sequence],
        computed: int,
        results: list[Result],
        turn: Turn,
        progress: TurnProgress,
    ) -> None:
        """Record a completed step of `model`: `computed` tokens of each sequence. Without results it keeps nothing."""
        with self._kv.monitor.changed:
            model.users -= 1
            tokens: dict[str, list[Token]] = {}
            now = time.monotonic()
            for sequence in sequences:
                sequence.busy -= 1
                if sequence.closed:
                    self._kv.sequences.free_if_closed(sequence)
            for sequence, result in zip(sequences, results, strict=False):
                if sequence.closed:
                    continue
                judged = _judged(model, _kept(sequence, result))
                if isinstance(judged, Failure):
                    self._end(sequence, judged, turn, progress, tokens)
                else:
                    sequence.idle_since_s = now
                    self._advance(sequence, computed, judged, turn, progress, tokens)
            for target, some in tokens.items():
                self._push(target, some)
            self._kv.monitor.notify()

    def _end(
        self,
        sequence: Sequence,
        failure: Failure,
        turn: Turn,
        progress: TurnProgress,
        tokens: dict[str, list[Token]],
    ) -> None:
        """End this sequence only, without its results of this step. Its gateway waits: another engine may succeed."""
        log.warning("%s choice %d ends: %s", sequence.key.request, sequence.key.choice, failure.reason)
        if failure.kind is not FailureKind.ENGINE:
            tokens.setdefault(sequence.reply_to, []).append(_error_of(sequence))
        progress.note(sequence, Finish.ERROR, reason=failure.reason, failure=failure.kind)
        turn.drop(sequence.key)
        self._kv.sequences.remove(sequence.key)

    def _advance(
        self,
        sequence: Sequence,
        computed: int,
        judged: Sampled | Pooled | None,
        turn: Turn,
        progress: TurnProgress,
        tokens: dict[str, list[Token]],
    ) -> None:
        before = sequence.kv_tokens // sequence.block_tokens
        sequence.kv_tokens += computed
        if sequence.seed and sequence.kv_tokens // sequence.block_tokens > before:
            self._kv.sequences.publish(self._kv.device, sequence, before)
        if judged is None:
            progress.advanced(sequence)
            return
        if not sequence.output:
            sequence.prefill_s = sequence.idle_since_s - sequence.begun_s
        index = sequence.accept(judged if isinstance(judged, Sampled) else Sampled(NO_TEXT))
        finish = _finish(sequence)
        token = token_of(sequence, index, finish)
        if isinstance(judged, Pooled):
            token.pooled = judged.values.astype("<f4").tobytes()
        tokens.setdefault(sequence.reply_to, []).append(token)
        sequence.stall_s = 0.0
        if finish is None:
            progress.advanced(sequence)
            return
        progress.note(sequence, finish)
        turn.drop(sequence.key)
        self._kv.sequences.remove(sequence.key)


def _kept(sequence: Sequence, result: Result) -> Kept:
    """What was said of the prompt stays with the sequence; what was chosen is left."""
    chosen = result.chosen if isinstance(result, Scored) else result
    if sequence.said is None:
        return chosen
    if isinstance(result, Scored):
        sequence.said[sequence.kv_tokens :] = result.prompt
    if sequence.output or not isinstance(chosen, Sampled):
        return chosen
    if len(sequence.said) == len(sequence.prompt) - 1:
        return chosen
    return Failure(FailureKind.ENGINE, "a part of the prompt was computed elsewhere, and its logprobs are not here")


def _judged(model: Model, result: Kept) -> Judged:
    """What counts of a result: no id goes into a prompt or to a client that is not in the vocabulary."""
    if isinstance(result, Sampled):
        size = model.layout.vocab_size if model.layout is not None else 0
        if result.token >= 0 and (result.token < size or not size):
            return result
        return Failure(FailureKind.ENGINE, f"a step of {model.name} chose token {result.token} of {size}")
    if isinstance(result, Refused):
        return Failure(FailureKind.ENGINE if result.ours else FailureKind.INVALID, result.reason)
    if not isinstance(result, NotFinite):
        return result
    if result.asked:
        reason = "the logits are not finite with the penalties, logit_bias and min_tokens that were asked for"
        return Failure(FailureKind.INVALID, reason)
    what = "outputs" if model.layout is not None and model.layout.pools else "logits"
    return Failure(FailureKind.NOT_FINITE, f"the {what} that {model.name} computed are not finite")


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
    said = tuple(sequence.said or ())
    times = sequence.prefill_s, sequence.load_s
    return Token(key, epoch, index, token, logprob, top, finish, sequence.reused, said, *times)


def _error_of(sequence: Sequence) -> Token:
    """The marker, without a token, that this sequence has ended with an error; the scheduler has the reason."""
    return Token(sequence.key, sequence.epoch, len(sequence.output), finish=Finish.ERROR)
