"""Rotary position embedding as config.json describes it: one frozen spec for every scaling that is supported.

Sources: RoFormer (arXiv 2104.09864); linear interpolation (2306.15595); YaRN (2309.00071, section 3); the wavelength
rule of Llama 3.1. Field names of both transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters) are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Union

from aegaeon_sidecar.models.fields import Fields

DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class Plain:
    """Frequencies as published. `dynamic` is this too: up to max_position_embeddings it changes nothing."""


@dataclass(frozen=True, slots=True)
class Linear:
    """Every frequency divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3:
    """Long wavelengths divided by `factor`, short ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_tokens: int


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN: interpolation by dimension; cos and sin scaled by `attention_factor`."""

    factor: float
    original_tokens: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool


Scaling = Union[Plain, Linear, Llama3, Yarn]


@dataclass(frozen=True, slots=True)
class Rope:
    """`theta`: base; `scaling`: see above; `reach_tokens`: how long a sequence may become with it."""

    theta: float
    scaling: Scaling
    reach_tokens: int


def read_rope(config: Fields, max_positions: int) -> Rope:
    """The rope of a config.json. Raises ConfigError for a scaling that is not supported."""
    table = config.table("rope_parameters") if "rope_parameters" in config else config.table("rope_scaling")
    theta = table.number("rope_theta", config.number("rope_theta", DEFAULT_THETA))
    if table.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)) != 1.0:
        where = table if "partial_rotary_factor" in table else config
        raise where.wrong("partial_rotary_factor", "1.0, the whole head is rotated")
    key = "type" if "type" in table and "rope_type" not in table else "rope_type"
    kind = table.value(key) or "default"
    if kind in ("default", "dynamic"):
        return Rope(theta, Plain(), max_positions)
    if kind == "linear":
        factor = table.number("factor")
        return Rope(theta, Linear(factor), max(max_positions, int(factor * max_positions)))
    if kind == "llama3":
        return Rope(theta, _llama3(table, max_positions), max_positions)
    if kind == "yarn":
        yarn = _yarn(table, max_positions)
        return Rope(theta, yarn, max(max_positions, int(yarn.factor * yarn.original_tokens)))
    raise table.wrong(key, "default, dynamic, linear, llama3, yarn")


def _llama3(table: Fields, max_positions: int) -> Llama3:
    low, high = table.number("low_freq_factor"), table.number("high_freq_factor")
    if high <= low:
        raise table.wrong("high_freq_factor", f"a number above low_freq_factor ({low:g})")
    original = table.integer("original_max_position_embeddings", max_positions)
    return Llama3(table.number("factor"), low, high, original)


def _yarn(table: Fields, max_positions: int) -> Yarn:
    original = table.integer("original_max_position_embeddings", max_positions)
    factor = table.number("factor", max_positions / original)
    return Yarn(
        factor=factor,
        original_tokens=original,
        beta_fast=table.number("beta_fast", 32.0),
        beta_slow=table.number("beta_slow", 1.0),
        attention_factor=table.number("attention_factor", _yarn_attention(table, factor)),
        truncate=table.boolean("truncate", True),
    )


def _yarn_attention(table: Fields, factor: float) -> float:
    """Temperature of the attention, YaRN section 3.4; the two mscale fields are DeepSeek's form of it."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0

    if "mscale" in table and "mscale_all_dim" in table:
        return scale(table.number("mscale")) / scale(table.number("mscale_all_dim"))
    return scale(1.0)
