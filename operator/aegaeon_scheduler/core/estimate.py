"""Seconds of prefills, decode steps and loads (Eq. 4-6 of the paper, a batch term, a floor), per (model, device).

Coefficients are configured or default, and refined from reports: see fit.py. Each fit has its R^2.
"""

from __future__ import annotations

from collections.abc import Container

from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig
from aegaeon_scheduler.core.datasheet import guess
from aegaeon_scheduler.core.domain import Footprint, ModelName
from aegaeon_scheduler.core.fit import Fit, Usual

_UNIT_TOKENS = 512  # by whose time the tokens of a part are guessed
# How unsure the given constants are (see Fit): of all terms together, that is how fast the device is, much more than of
# each beside the others. A prompt's quadratic term goes with the linear one: their ratio is a property of the model's
# shape, which short prompts would only blur.
_LEVEL, _TERM, _SHAPE = 1000.0, 30.0, 0.1
_STEP_PRIOR = (_LEVEL + _TERM, _LEVEL, _LEVEL, _LEVEL + _TERM, _LEVEL, _LEVEL + _TERM)
_PREFILL_PRIOR = (
    _LEVEL + _TERM, _LEVEL, _LEVEL, _LEVEL + _TERM, _LEVEL + _TERM, _LEVEL + _TERM + _SHAPE
)  # fmt: skip


class Estimate:
    """One model on one device. Tokens in, seconds out."""

    __slots__ = (
        "_constants", "_copies", "_firsts", "_kv_s_per_byte", "_load_s_per_byte", "_loads", "_prefill", "_step",
        "first_s", "revision",
    )  # fmt: skip

    def __init__(self, constants: LatencyConstants) -> None:
        k, usual = constants, LatencyConstants()
        self._constants = k
        self._step = Fit((k.a, k.b, k.c), (usual.a, usual.b, usual.c), _STEP_PRIOR)
        self._prefill = Fit((k.p0, k.p1, k.p2), (usual.p0, usual.p1, usual.p2), _PREFILL_PRIOR)
        self._load_s_per_byte = 1.0 / k.load_bytes_per_s
        self._kv_s_per_byte = 1.0 / k.kv_bytes_per_s
        self._loads, self._copies = Usual(), Usual()
        self._firsts = {True: Usual(), False: Usual()}  # by whether it is a prefill
        self.revision = 0  # rises with what is learned of steps
        self.first_s = 0.0  # of the first prefill and the first decode step on an engine

    def step_s(self, context_tokens: int, batch: int) -> float:
        """One decode step of a batch (Eq. 6 with a batch term)."""
        w = self._step.w  # `predict` in place: a pass over a full pool asks a thousand times
        seconds = w[0] + w[1] * context_tokens + w[2] * batch
        return seconds if seconds > 1e-6 else 1e-6

    def prefill_s(self, tokens: int) -> float:
        """One prompt (Eq. 5 with a floor)."""
        return self.together_s(tokens, tokens * tokens)

    def together_s(self, tokens: int, squares: int, passes: int = 1) -> float:
        """Prompts that are computed together in so many passes: their tokens in all, and the sum of the squares of each
        one's."""
        seconds = self._prefill.predict(passes, tokens, squares)
        return max(1e-6 if self._prefill.count else self._constants.floor, seconds)

    def part_s(self, done: int, tokens: int) -> float:
        """So many tokens of a prompt behind `done` others."""
        return self.prefill_s(done + tokens) - (self.prefill_s(done) if done else 0.0)

    def part_tokens(self, done: int, seconds: float) -> int:
        """Tokens of a prompt behind `done` others that take so long."""
        tokens = seconds / max(self.part_s(done, _UNIT_TOKENS), 1e-6) * _UNIT_TOKENS
        return int(tokens * min(2.0, max(0.25, seconds / max(self.part_s(done, int(tokens)), 1e-6))))

    def load_s(self, nbytes: int) -> float:
        """Weights from the host cache (Eq. 4)."""
        return nbytes * self._load_s_per_byte

    def kv_s(self, nbytes: int) -> float:
        """KV blocks between device and host tier."""
        return nbytes * self._kv_s_per_byte

    def saw_steps(self, context_tokens: int, batch: int, seconds: float) -> None:
        """A decode step of this size took so long (mean of a few)."""
        self._step.update(1.0, context_tokens, batch, seconds)
        self.revision += 1

    def saw_prefill(self, tokens: int, seconds: float, done: int = 0) -> None:
        """So many tokens of a prompt behind `done` others took so long. The first ones pay the constant."""
        self._prefill.update(0.0 if done else 1.0, tokens, (done + tokens) ** 2 - done * done, seconds)

    def saw_together(self, tokens: int, squares: int, seconds: float) -> None:
        """Prompts that were computed together took so long; see together_s."""
        self._prefill.update(1.0, tokens, squares, seconds)

    def saw_first(self, seconds: float, prefill: bool) -> None:
        """A first prefill, or decode step, took so long: kernels were compiled, graphs captured."""
        before = self._firsts[prefill].median
        self.first_s += self._firsts[prefill].saw(seconds) - before

    def saw_load(self, nbytes: int, seconds: float) -> None:
        """A load moved so many bytes."""
        if seconds > 0 and nbytes > 0:
            self._load_s_per_byte = self._loads.saw(seconds / nbytes)

    def saw_kv(self, nbytes: int, seconds: float) -> None:
        """A KV copy moved so many bytes."""
        if seconds > 0 and nbytes > 0:
            self._kv_s_per_byte = self._copies.saw(seconds / nbytes)

    def constants(self) -> LatencyConstants:
        """The constants as refined so far."""
        a, b, c = self._step.w
        p0, p1, p2 = self._prefill.w
        rates = 1.0 / self._load_s_per_byte, 1.0 / self._kv_s_per_byte
        return LatencyConstants(a, b, c, p0, p1, p2, self._constants.floor, *rates)

    def quality(self) -> tuple[float, float]:
        """R^2 of the step fit and of the prefill fit."""
        return self._step.r2, self._prefill.r2


class Estimates:
    """All estimates, made on first use from the constants that fit best: those given for model and device, for the
    model, for the device; a guess from the model's size where the device is known; the default."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._default = config.latency
        self.pooled_tokens = config.max_pooled_tokens or config.prefill_chunk_tokens  # of a pass
        self._given = {(c.model, c.device): c.constants for c in config.constants}
        self._table: dict[tuple[str, str], Estimate] = {}
        self._sizes: dict[str, Footprint] = {}

    def size(self, model: ModelName, footprint: Footprint) -> None:
        """Set the footprint that first guesses for the model are based on, on devices without an estimate."""
        self._sizes[model] = footprint

    def keep_only(self, models: Container[str]) -> None:
        """Forget the others, which left the catalog."""
        self._table = {key: estimate for key, estimate in self._table.items() if key[0] in models}
        self._sizes = {model: size for model, size in self._sizes.items() if model in models}

    def of(self, model: ModelName, device: str) -> Estimate:
        """The estimate of this pair."""
        key = (model, device)
        estimate = self._table.get(key)
        if estimate is None:
            estimate = self._table[key] = Estimate(self._constants(model, device))
        return estimate

    def _constants(self, model: str, device: str) -> LatencyConstants:
        for key in ((model, device), (model, ""), ("", device)):
            if key in self._given:
                return self._given[key]
        size = self._sizes.get(model)
        return (None if size is None else guess(size, device)) or self._default

    def items(self) -> list[tuple[tuple[str, str], Estimate]]:
        """Every pair that was used, in order of first use."""
        return list(self._table.items())
