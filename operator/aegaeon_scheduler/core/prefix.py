"""Engines whose prefix caches hold the beginning of a prompt, as far as what they computed lately tells.

A prompt's chain is the hashes of its first `step` tokens, 2 `step`, ...: few for any length. What an engine computed is
expected there until it was not found there, or others were computed since: the least recently used are forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

from aegaeon_scheduler.core.domain import InstanceId, ModelName, Role
from aegaeon_scheduler.core.state import Instance, Sequence

LEAST_STEP, MOST_STEPS = 128, 32
"""tokens between two hashes of a short prompt, and hashes of a long one at most"""
MOST_HASHES = 1 << 17
"""of all prompts: 30 MB, some 4,000 long conversations"""
MOST_ENGINES = 4
"""for each hash: those that computed it last"""
MOST_MISSES = 8
"""prompts in a row of which an engine reused nothing, after which nothing is expected there until it reuses some"""


def step_tokens(prompt_tokens: int) -> int:
    """Tokens between two hashes of a prompt: where a longer prompt has one, a shorter one of that length has one."""
    step = LEAST_STEP
    while prompt_tokens > step * MOST_STEPS:
        step *= 2
    return step


class Engine(NamedTuple):
    """One life of an engine's process: its cache ends with it."""

    instance: InstanceId
    incarnation: str

    def lives(self, instances: dict[InstanceId, Instance]) -> bool:
        """Returns whether it is attached."""
        inst = instances.get(self.instance)
        return inst is not None and inst.incarnation == self.incarnation


class Beginning(NamedTuple):
    """The beginning of prompts of a model, `tokens` longer than the one before, who computed it last, the request that
    was the first to begin so, and whether another one did since."""

    model: ModelName
    tokens: int
    engines: tuple[Engine, ...]
    request: str
    again: bool


class Prefixes:
    """Bounded: MOST_HASHES, each with MOST_ENGINES."""

    def __init__(self) -> None:
        self._beginnings: dict[int, Beginning] = {}  # least recently used first
        self._tokens: dict[ModelName, dict[Engine, int]] = {}
        self._misses: dict[Engine, int] = {}  # prompts in a row that were expected and not found

    def __len__(self) -> int:
        return len(self._beginnings)

    def find(self, seq: Sequence, instances: dict[InstanceId, Instance]) -> dict[InstanceId, int]:
        """Leading tokens of its prompt that engines are expected to have; those that have none are left out."""
        tokens: dict[InstanceId, int] = {}
        if not seq.chain or not self._beginnings:
            return tokens
        step = step_tokens(seq.prompt_tokens)
        for at in range(len(seq.chain), 0, -1):
            beginning = self._beginnings.get(seq.chain[at - 1])
            for engine in beginning.engines if beginning is not None else ():
                if engine.instance in tokens or not engine.lives(instances):
                    continue
                if self._misses.get(engine, 0) < MOST_MISSES:
                    tokens[engine.instance] = min(at * step, seq.prompt_tokens - 1)
        return tokens

    def computed(self, seq: Sequence, inst: Instance) -> None:
        """An engine that computes prompts has the KV of this one."""
        if inst.role is Role.DECODE:
            return
        engine, step = Engine(inst.id, inst.incarnation), step_tokens(seq.prompt_tokens)
        for number in seq.chain:
            before = self._beginnings.pop(number, None)
            earlier = () if before is None else tuple(e for e in before.engines if e.instance != inst.id)
            first = seq.id.request if before is None else before.request
            after = Beginning(
                seq.model.name,
                step if before is None else before.tokens,
                (*earlier[1 - MOST_ENGINES :], engine),
                first,
                before is not None and (before.again or first != seq.id.request),
            )
            self._set(number, before, after)
        while len(self._beginnings) > MOST_HASHES:
            number = next(iter(self._beginnings))
            self._set(number, self._beginnings.pop(number), None)

    def tokens(self, model: ModelName) -> dict[Engine, int]:
        """Tokens with which several of a model's prompts began and that are expected in the caches of engines, which
        may be gone. What began one prompt alone may never be asked for again."""
        return self._tokens.get(model, _NOTHING)

    def reused(self, seq: Sequence, inst: Instance, tokens: int) -> None:
        """An engine found so many tokens of its prompt: what was expected beyond is gone."""
        engine, expected = Engine(inst.id, inst.incarnation), seq.cached.get(inst.id, 0)
        if tokens:
            self._misses.pop(engine, None)
        elif expected:
            self._misses[engine] = self._misses.get(engine, 0) + 1
        if tokens < expected:
            for number in seq.chain[tokens // step_tokens(seq.prompt_tokens) :]:
                self._drop(number, engine)

    def lost(self, inst: Instance) -> None:
        """Its process may be gone. If it is not, it comes back with what it had."""
        self._misses.pop(Engine(inst.id, inst.incarnation), None)

    def forget(self, model: ModelName) -> None:
        """Drop what is noted of a model that is withdrawn."""
        for number in [number for number, beginning in self._beginnings.items() if beginning.model == model]:
            self._set(number, self._beginnings.pop(number), None)

    def _drop(self, number: int, engine: Engine) -> None:
        before = self._beginnings.pop(number, None)
        if before is not None:
            engines = tuple(each for each in before.engines if each != engine)
            self._set(number, before, before._replace(engines=engines) if engines else None)

    def _set(self, number: int, before: Beginning | None, after: Beginning | None) -> None:
        """Replace what was noted of a hash, which has been taken out."""
        for beginning, sign in ((before, -1), (after, 1)):
            if beginning is not None and beginning.again:
                of = self._tokens.setdefault(beginning.model, {})
                for engine in beginning.engines:
                    of[engine] = of.get(engine, 0) + sign * beginning.tokens
                    if not of[engine]:
                        del of[engine]
                if not of:
                    del self._tokens[beginning.model]
        if after is not None:
            self._beginnings[number] = after

    def check(self) -> list[str]:
        """List the models whose sums of tokens are not those of what is noted."""
        sums: dict[ModelName, dict[Engine, int]] = {}
        for beginning in (b for b in self._beginnings.values() if b.again):
            of = sums.setdefault(beginning.model, {})
            for engine in beginning.engines:
                of[engine] = of.get(engine, 0) + beginning.tokens
        models = {*sums, *self._tokens}
        return [f"tokens cached of {name}" for name in sorted(models) if sums.get(name) != self._tokens.get(name)]


_NOTHING: dict[Engine, int] = {}
