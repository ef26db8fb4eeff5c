"""Every architecture of the vLLM that is locked has a row: what it keeps, and what becomes of it here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from backend_vllm.families import BASE, FAMILIES, HEAD, QUANTISED, REFUSED, save
from backend_vllm.kinds import STATE, bases, tables
from backend_vllm.reference import logits as reference_logits
from backend_vllm.rows import OUTCOMES, Row, read_rows
from backend_vllm.unreferenced import REFUSED_AS, UNREFERENCED, UNROUTED, make
from backend_vllm.zoo import NEAR, UNREAD, ZOO, ZOO_REFUSED
from safetensors.torch import load_file, save_file

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


def test_no_row_is_unknown() -> None:
    for row in ROWS:
        assert row.outcome in OUTCOMES
        assert bool(row.says) == (row.outcome == "refused"), row
        assert bool(row.model_type) == (row.outcome == "own-code"), row
    assert {row.architecture for row in ROWS if row.outcome == "refused"} == {
        *REFUSED_AS,
        *UNREAD,
        *UNROUTED,
        "HrmTextForCausalLM",
    }
    assert {name for row in ROWS if row.outcome == "proof" for name in row.families} == {*UNREFERENCED}


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


@pytest.mark.parametrize("outcome", ["own-code"])
def test_models_whose_configuration_is_code_of_their_own_are_refused_as_they_are_published(
    outcome: str, family: Callable[[str], Path], vllm_backend: Any, tmp_path: Path
) -> None:
    shutil.copy(family("llama") / "model.safetensors", tmp_path)
    for row in (row for row in ROWS if row.outcome == outcome):
        fields = {"architectures": [row.architecture], "model_type": row.model_type}
        auto = {"AutoConfig": "configuration.Config", "AutoModelForCausalLM": "modeling.Model"}
        (tmp_path / "config.json").write_text(json.dumps(fields | {"auto_map": auto}))
        with pytest.raises(ModelError, match=OUTCOMES[outcome]):
            vllm_backend().describe(tmp_path, 0)


@pytest.mark.parametrize("name", UNREFERENCED)
def test_a_model_that_has_no_reference_is_admitted_by_proof(name: str, vllm_backend: Any, tmp_path: Path) -> None:
    vllm_backend().describe(make(name, tmp_path / name), 0).proof.run()


@pytest.mark.parametrize("row", [row for row in ROWS if row.outcome == "same"], ids=lambda row: row.architecture)
def test_weights_of_a_family_under_another_name_are_admitted_by_proof(
    row: Row, family: Callable[[str], Path], vllm_backend: Any, tmp_path: Path
) -> None:
    [name] = row.families
    embeds = row.architecture.endswith("Model")
    directory = renamed(family(name), tmp_path / name, row.architecture)
    if embeds:  # its files have no head, and names without that of the model
        tensors = load_file(directory / "model.safetensors")
        bare = {key.removeprefix("model."): tensor for key, tensor in tensors.items() if not key.startswith("lm_head")}
        save_file(bare, directory / "model.safetensors", metadata={"format": "pt"})
    vllm_backend().describe(directory, 0, "embed" if embeds else "").proof.run()


@pytest.mark.parametrize("architecture", REFUSED_AS)
def test_an_architecture_is_refused_by_the_sentence_of_its_row(
    architecture: str, family: Callable[[str], Path], vllm_backend: Any, tmp_path: Path
) -> None:
    [row] = [row for row in ROWS if row.architecture == architecture]
    name, fields = REFUSED_AS[architecture]
    with pytest.raises(ModelError, match=row.says):
        vllm_backend().describe(renamed(family(name), tmp_path / name, architecture, **fields), 0)


@pytest.mark.parametrize("architecture", [*UNREAD, *UNROUTED])
def test_an_architecture_that_vllm_s_cpu_build_does_not_read_or_compute_is_refused_by_the_sentence_of_its_row(
    architecture: str, vllm_backend: Any, tmp_path: Path
) -> None:
    [row] = [row for row in ROWS if row.architecture == architecture]
    if architecture in UNREAD:
        directory = save(*UNREAD[architecture], tmp_path / "model", "float32")
    else:
        directory = make(architecture, tmp_path / "model")
    with pytest.raises(ModelError, match=row.says):
        vllm_backend().describe(directory, 0)


def test_a_prefix_that_attends_in_both_directions_is_refused_by_proof(vllm_backend: Any, tmp_path: Path) -> None:
    [row] = [row for row in ROWS if row.architecture == "HrmTextForCausalLM"]
    directory = save("HrmTextConfig", BASE | HEAD, tmp_path / "hrm", "float32")
    with pytest.raises(ModelError, match=row.says):
        vllm_backend().describe(directory, 0).proof.run()


def renamed(source: Path, directory: Path, architecture: str, **fields: Any) -> Path:
    """A copy that says it is of this architecture."""
    shutil.copytree(source, directory)
    config = json.loads((directory / "config.json").read_text()) | {"architectures": [architecture]} | fields
    (directory / "config.json").write_text(json.dumps(config))
    return directory


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
