"""Every token index exactly once, whatever the network repeats, reorders or sends from engines given up for dead."""

from __future__ import annotations

from collections.abc import Sequence

from aegaeon_proto.v1.gateway_pb2 import Token
from aegaeon_proto.v1.model_pb2 import FINISH_REASON_ERROR, FinishReason


class Assembly:
    """The output of one choice as received: `tokens` is gapless, and it is the prefix to go on from after a loss.

    Only tokens of the current `epoch` count. Invariant: what waits in `_early` has an index above len(tokens).
    """

    __slots__ = ("_early", "_limit", "cached_tokens", "epoch", "finish", "tokens")

    def __init__(self, limit: int) -> None:
        self.epoch = 1
        self.tokens: list[int] = []
        self.finish: FinishReason.ValueType | None = None
        self.cached_tokens = 0
        """tokens of the prompt whose KV cache was reused"""
        self._early: dict[int, Token] = {}
        self._limit = limit

    def receive(self, token: Token) -> Sequence[Token]:
        """Take one token; return those that are now in order (none, it, or it and early ones)."""
        if token.epoch != self.epoch or self.finish is not None:
            return ()
        due = len(self.tokens)
        if token.index != due:
            if due < token.index < self._limit:
                self._early.setdefault(token.index, token)
            return ()
        self._take(token)
        return self._take_early([token]) if self._early else (token,)

    def next_epoch(self) -> int:
        """Begin anew: messages of the former epoch are dropped."""
        self.epoch += 1
        self._early.clear()
        return self.epoch

    def _take_early(self, taken: list[Token]) -> list[Token]:
        while self.finish is None and (token := self._early.pop(len(self.tokens), None)) is not None:
            self._take(token)
            taken.append(token)
        return taken

    def _take(self, token: Token) -> None:
        self.cached_tokens = max(self.cached_tokens, token.cached_tokens)
        if token.finish != FINISH_REASON_ERROR:  # which carries no token
            self.tokens.append(token.token)
        if token.finish:
            self.finish = token.finish
            self._early.clear()
