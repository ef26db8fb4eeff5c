"""Every token index exactly once, whatever the network repeats, reorders or sends from engines given up for dead."""

from __future__ import annotations

from aegaeon_gateway.generation.output import Output
from aegaeon_proto.v1.gateway_pb2 import Token
from aegaeon_proto.v1.model_pb2 import FINISH_REASON_ERROR, FinishReason


class Choice:
    """One sequence. Its received `tokens` are gapless, and they are the prefix to go on from after a loss.

    Only tokens of the current `epoch` count. Invariant: what waits in `_early` has an index above len(tokens).
    `fresh`: the tokens that `output` has not been fed yet, with their receive times.
    """

    __slots__ = (
        "_early",
        "_taken_at",
        "_tbt_s",
        "cached_tokens",
        "ended_at",
        "epoch",
        "finish",
        "first_at",
        "fresh",
        "held_at",
        "last_at",
        "limit",
        "load_s",
        "losses",
        "number",
        "output",
        "paused_s",
        "prefill_s",
        "stall_s",
        "submitted",
        "tokens",
    )

    def __init__(self, number: int, limit: int, output: Output, tbt_s: float) -> None:
        self.number = number
        self.limit = limit
        self.output = output
        self.epoch = 1
        self.tokens: list[int] = []
        self.fresh: list[tuple[Token, float]] = []
        self.finish: FinishReason.ValueType | None = None
        self.cached_tokens = 0
        """tokens of the prompt whose KV cache was reused"""
        self.prefill_s = 0.0
        """an engine's, up to its first token"""
        self.load_s = 0.0
        """it waited for its model's weights, before that"""
        self.stall_s = 0.0
        """it waited after that, for its model's next turns, as engines say, or otherwise beyond its objective"""
        self.losses = 0
        """in a row, without a token between them"""
        self.first_at = 0.0
        self.last_at = 0.0
        self.ended_at = 0.0
        """its engine has computed all of it; of the newest token since, if one came later; 0: not that it is known"""
        self.submitted = False
        self.held_at: float | None = None
        """its quota is used up since then, and no engine works on it"""
        self.paused_s = 0.0
        """so long it was held in all: its tokens are due so much later"""
        self._early: dict[int, Token] = {}
        self._taken_at = 0.0
        self._tbt_s = tbt_s

    @property
    def open(self) -> bool:
        """An engine still has to work on it."""
        return self.finish is None and not self.output.stopped_here

    def submit(self) -> None:
        """Prepare to send it: with epoch 1 at first, with a higher one each further time. Every further time begins
        anew, with a higher one."""
        if self.submitted:
            self.epoch += 1
            self._early.clear()
        self.submitted = True
        self.ended_at = 0.0

    def hold(self, now: float) -> None:
        """No engine is to work on it until it is resumed."""
        self.held_at = now

    def resume(self, now: float) -> None:
        """End its hold: it is about to be submitted again, with all that it has received."""
        if self.held_at is not None:
            self.paused_s += now - self.held_at
            self.held_at = None
            self.last_at = now if self.first_at else 0.0
            self._taken_at = now if self._taken_at else 0.0

    def receive(self, token: Token, now: float) -> bool:
        """Take one token, and early ones that are next then; True when there is anything fresh."""
        if token.epoch != self.epoch or self.finish is not None:
            return False
        if self.ended_at:
            self.ended_at = now
        due = len(self.tokens)
        if token.index != due:
            if due < token.index < self.limit:
                self._early.setdefault(token.index, token)
            return False
        self._take(token, now)
        while self._early and (early := self._early.pop(len(self.tokens), None)) is not None:
            self._take(early, now)
        self.losses = 0
        return True

    def _take(self, token: Token, now: float) -> None:
        self.fresh.append((token, now))
        self.cached_tokens = max(self.cached_tokens, token.cached_tokens)
        self.prefill_s = self.prefill_s or token.prefill_s
        self.load_s = self.load_s or token.load_s
        if self._taken_at:
            self.stall_s += max(token.stall_s, now - self._taken_at - self._tbt_s)
        self._taken_at = now
        if token.finish != FINISH_REASON_ERROR:  # which carries no token
            self.tokens.append(token.token)
        if token.finish:
            self.finish = token.finish
            self._early.clear()
