"""Bounds of sampling parameters, as a gateway and a sidecar judge them: the same numbers, in float32."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_proto.sampling import DEFAULTS, LOGIT_BIAS, MAX_LOGIT_BIAS, PENALTY, Bounds, fault
from aegaeon_proto.v1.model_pb2 import Sampling

FLOATS: dict[str, Bounds] = {
    **{name: bounds for name, bounds in DEFAULTS.items() if name != "top_k"},
    "presence_penalty": PENALTY,
    "frequency_penalty": PENALTY,
}


def sampling(**fields: object) -> Sampling:
    return Sampling(**({"top_p": 1.0, "repetition_penalty": 1.0} | fields))  # type: ignore[arg-type]


@given(st.sampled_from(sorted(FLOATS)), st.data())
def test_values_accepted_in_double_precision_are_within_bounds_on_the_wire(name: str, data: st.DataObject) -> None:
    bounds = FLOATS[name]
    assert fault(sampling(**{name: data.draw(st.floats(bounds.low, bounds.high))})) is None


@given(st.sampled_from(sorted(FLOATS)), st.floats(width=32))
def test_every_other_float_is_refused_by_name(name: str, value: float) -> None:
    bounds, found = FLOATS[name], fault(sampling(**{name: value}))
    assert (found is None) == bounds.holds(value)
    assert found is None or (found.param == name and found.message.startswith(f"{name}: "))


@pytest.mark.parametrize("bias", [math.nan, math.inf, -math.inf, 101.0])
def test_an_invalid_bias_is_refused(bias: float) -> None:
    assert not LOGIT_BIAS.holds(bias)
    found = fault(sampling(logit_bias={7: 1.0, 8: bias}))
    assert found is not None
    assert found.param == "logit_bias"


def test_too_many_biases_are_refused() -> None:
    assert fault(sampling(logit_bias=dict.fromkeys(range(MAX_LOGIT_BIAS), 1.0))) is None
    assert fault(sampling(logit_bias=dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0))) is not None


def test_integers_of_any_size_are_checked() -> None:
    assert not DEFAULTS["top_k"].holds(10**400)
    assert DEFAULTS["top_k"].holds(0)
