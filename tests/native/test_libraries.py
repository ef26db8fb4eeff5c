"""A lowered processor level: what torch compiles for it is kept apart."""

from __future__ import annotations

import pytest

from aegaeon_native.libraries import LEVEL, lower_libraries

COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def _lowered(**environment: str) -> dict[str, str]:
    lower_libraries(environment)
    return environment


@pytest.mark.parametrize("environment", [{}, {LEVEL: ""}, {LEVEL: "avx512"}])
def test_an_environment_that_lowers_nothing_is_as_it_was(environment: dict[str, str]) -> None:
    assert _lowered(**environment) == environment


def test_each_level_keeps_what_torch_compiles_in_a_folder_of_its_own() -> None:
    avx2, baseline = _lowered(**{LEVEL: "avx2"}), _lowered(**{LEVEL: "baseline"})
    assert avx2["ATEN_CPU_CAPABILITY"] == "avx2"
    assert avx2[COMPILED] != baseline[COMPILED]
    assert _lowered(**avx2) == avx2, "a child lowers its parent's environment once more"


def test_a_folder_that_the_user_names_is_shared_with_no_other_level() -> None:
    assert _lowered(**{LEVEL: "avx2", COMPILED: "/data/compiled"})[COMPILED] == "/data/compiled-avx2"
