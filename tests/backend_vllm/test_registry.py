"""Every architecture of the vLLM that is locked has a row: what it keeps, and what becomes of it here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from backend_vllm.families import FAMILIES, QUANTISED, REFUSED, save
from backend_vllm.kinds import STATE, bases, tables
from backend_vllm.reference import logits as reference_logits
from backend_vllm.rows import OUTCOMES, Row, read_rows
from backend_vllm.zoo import NEAR, ZOO, ZOO_REFUSED

from aegaeon_sidecar.backends.vllm.folders import check_config
from aegaeon_sidecar.backends.vllm.hooks import installed
from aegaeon_sidecar.domain.errors import ModelError, UnsupportedError

TOKENS = [5 + 3 * j % 240 for j in range(90)]
CUTS = ((0, 30), (30, 70), (70, 71), (71, 72), (72, 90))
BLOCKS = [17, 3, 11]
ROWS = read_rows()
GENERIC = "_TRANSFORMERS_BACKEND_MODELS"  # classes for models of no name of their own
BY_NAME = {"media", "encoder", "drafts"}


def test_each_architecture_of_the_registry_has_one_row_and_no_other_has() -> None:
    root = installed()
    assert root is not None
    registered = {name for table, names in tables(root).items() if table != GENERIC for name in names}
    listed = [row.architecture for row in ROWS]
    assert sorted(listed) == sorted(registered), "vLLM was upgraded: see what its new models are, and write rows"


def test_rows_say_which_classes_keep_a_state_per_sequence() -> None:
    root = installed()
    assert root is not None
    registered = {name: place for names in tables(root).values() for name, place in names.items()}
    stateful = {name for name, place in registered.items() if bases(root, *place) & STATE}
    undecided = {row.architecture for row in ROWS if row.outcome not in BY_NAME}
    assert {row.architecture for row in ROWS if row.outcome == "state"} == stateful & undecided


def test_rows_that_are_exact_name_the_families_that_show_it() -> None:
    shown = {family for row in ROWS if row.outcome == "exact" for family in row.families}
    assert shown == {*FAMILIES, *ZOO, *QUANTISED}
    refused = {family for row in ROWS if row.outcome in ("state", "latent") for family in row.families}
    assert refused == {*REFUSED, *ZOO_REFUSED} - {"gemma4heads"}


@pytest.mark.parametrize("outcome", sorted(BY_NAME))
def test_models_that_are_refused_by_their_name_are_refused_before_their_class_is_imported(
    outcome: str, vllm_backend: Any, tmp_path: Path
) -> None:
    vllm_backend()
    from aegaeon_sidecar.backends.vllm.refusals import check_known

    for row in (row for row in ROWS if row.outcome == outcome):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [row.architecture]}))
        with pytest.raises(UnsupportedError, match=f"^{row.architecture} {OUTCOMES[outcome]}"):
            _check(tmp_path, row, check_known)


def _check(directory: Path, row: Row, check_known: Callable[[Path, list[str]], None]) -> None:
    check_config(directory)
    check_known(directory, [row.architecture])


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root, made = tmp_path_factory.mktemp("zoo"), dict[str, Path]()

    def directory(name: str) -> Path:
        if name not in made:
            kind, settings, _ = (ZOO | ZOO_REFUSED)[name]
            made[name] = save(kind, settings, root / name, "float32")
        return made[name]

    return directory


@pytest.fixture(scope="module")
def expected(zoo: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return reference_logits(map(zoo, ZOO), TOKENS, tmp_path_factory.mktemp("reference") / "logits.npz")


@pytest.mark.parametrize("name", ZOO)
def test_a_family_is_proved_and_gives_the_logits_of_transformers(
    name: str, zoo: Callable[[str], Path], vllm_backend: Any, rig: Any, expected: Mapping[str, Any]
) -> None:
    model = rig(vllm_backend(), zoo(name))
    assert (model.layout.bake is not None) == ZOO[name][2]
    for begin, end in CUTS:
        row, reference = model.logits(TOKENS[begin:end], begin, BLOCKS).numpy(), expected[name][end - 1]
        assert abs(row - reference).max() < NEAR.get(name, 2e-5) * abs(reference).max()
    vllm_backend().describe(zoo(name), 0).proof.run()


@pytest.mark.parametrize("name", ZOO_REFUSED)
def test_a_family_whose_kv_is_of_another_kind_is_refused_by_its_sentence(
    name: str, zoo: Callable[[str], Path], vllm_backend: Any
) -> None:
    with pytest.raises(ModelError, match=ZOO_REFUSED[name][2]):
        vllm_backend().describe(zoo(name), 0)
