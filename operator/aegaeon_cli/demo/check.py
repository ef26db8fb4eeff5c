"""The demo's verdict: every greedy answer against transformers, token by token and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from aegaeon_cli.demo.traffic import Exchange
from aegaeon_cli.demo.verify import TIE, Verdict, chat_ids, eos_id, text_of, verify, with_end


@dataclass(frozen=True, slots=True)
class Check:
    """All outputs of a run compared with transformers. `differences` are sentences."""

    outputs: int
    identical: int
    positions: int
    ties: int
    differences: tuple[str, ...]

    @property
    def sentence(self) -> str:
        return f"{self.identical} of {self.outputs} outputs identical to Hugging Face transformers"


def check(exchanges: Sequence[Exchange], directories: Mapping[str, Path]) -> Check:
    """Check every greedy exchange; one that ended in an error is an output that differs."""
    greedy = [exchange for exchange in exchanges if exchange.chat.temperature == 0]
    checks = [_check_one(exchange, directories[exchange.chat.model]) for exchange in greedy]
    differences = tuple(difference for difference, _, _ in checks if difference)
    positions, ties = sum(n for _, n, _ in checks), sum(n for _, _, n in checks)
    return Check(len(greedy), len(greedy) - len(differences), positions, ties, differences)


def _check_one(exchange: Exchange, directory: Path) -> tuple[str, int, int]:
    """A sentence about the difference (empty: none), positions checked, ties."""
    name = f"{exchange.chat.model}, {exchange.chat.question!r}"
    if exchange.error or not exchange.tokens:
        return f"{name}: {exchange.error or 'the answer contains no token ids'}", 0, 0
    output = with_end(exchange.tokens, exchange.finish_reason, eos_id(directory))
    verdict = _verdict(directory, exchange.chat.question, tuple(output))
    if not verdict.identical:
        where = f"token {verdict.first_difference} of {verdict.positions} is {verdict.gap:.3g} below the largest logit"
        return f"{name}: {where}", verdict.positions, verdict.ties
    if text_of(directory, output) != exchange.text:
        return f"{name}: the tokens are identical, but the text is not their decoding", verdict.positions, verdict.ties
    return "", verdict.positions, verdict.ties


@lru_cache(maxsize=4096)
def _verdict(directory: Path, question: str, output: tuple[int, ...]) -> Verdict:
    """Cached: people under load get the same greedy answer again and again."""
    return verify(directory, chat_ids(directory, question), output)


def ties_sentence(result: Check) -> str:
    """A sentence about the number of ties."""
    return f"{result.positions} tokens checked, {result.ties} ties closer than {TIE:g}"
