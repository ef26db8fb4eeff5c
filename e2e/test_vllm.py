"""A pool whose engines compute with vLLM, on real pods: models and an adapter come and go while it serves.

`added` is of an architecture that only vLLM executes, and is baked in the pod that serves it first; `poet` is an
adapter of llama. Every answer is that of transformers, for the adapter that of llama with its matrices merged.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from backend_vllm.adapters import make_adapter, merge

from aegaeon_cli.demo import clients
from aegaeon_cli.models import questions
from aegaeon_cli.models.cache import MANIFEST
from e2e.cluster import product
from e2e.cluster.layout import Layout
from e2e.load import Load
from e2e.manifests import BLUE, RED, engine_pods, gpu_pool, keys, model_pool
from e2e.pool import PodsOfPool, a_pool

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]
SERVED = {"llama": RED, "mistral": BLUE}
ENGINES = 2


@pytest.fixture(scope="module")
def grown(models: Path, nodes: Layout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny models, the one that is added, and llama with the adapter merged, as references; nodes have the first
    two and the adapter."""
    folder, on_nodes = (tmp_path_factory.mktemp(name) for name in ("references", "nodes"))
    shutil.copytree(models, folder, dirs_exist_ok=True)
    make_mixtral(folder / "llama", folder / "added")
    make_adapter(folder / "llama", on_nodes / "adapters/poet", seed=1)
    merge(folder / "llama", on_nodes / "adapters/poet", folder / "poet")
    shutil.copytree(folder / "added", on_nodes / "added")
    product.put_models(nodes, on_nodes)
    known = json.loads((folder / MANIFEST).read_text("utf-8"))
    known["questions"] |= dict.fromkeys(("added", "poet"), questions(models)["llama"])
    (folder / MANIFEST).write_text(json.dumps(known), "utf-8")
    return folder


@pytest.fixture(scope="module")
def computing(release: str, own_cluster: Path, grown: Path) -> Iterator[PodsOfPool]:
    """Two engines; llama of tenant red, mistral of tenant blue. Only one of the two fits into an engine's memory."""
    spec: dict[str, Any] = {
        "backend": "vllm",
        "engines": {"replicas": ENGINES},
        "adapters": {"maxRank": 8, "maxLoaded": 2, "memory": "4Mi"},
        "podTemplate": engine_pods("vllm"),
    }
    with a_pool(own_cluster, "aegaeon-vllm", gpu_pool(**spec)) as made:
        made.apply(keys("red", RED), keys("blue", BLUE))
        made.apply(model_pool("red", ["llama"]), model_pool("blue", ["mistral"]))
        made.wait_until_ready()
        yield made


def test_the_backend_chooses_the_engines_image_and_answers_are_those_of_transformers(
    computing: PodsOfPool, grown: Path
) -> None:
    engines = [pod.name for pod in computing.pods("engine")]
    images = computing.kubectl("get", "pods", *engines, "-o", "jsonpath={.items[*].spec.containers[*].image}")
    with Load(computing.url, SERVED, grown) as load:
        load.wait_for_answers(12)

    assert [name.rpartition("/")[2].partition(":")[0] for name in images.split()] == ["aegaeon-engine-vllm"] * ENGINES
    assert_right(load)


def test_a_model_and_an_adapter_come_and_the_model_goes_while_others_stream(computing: PodsOfPool, grown: Path) -> None:
    before = {pod.uid for pod in computing.pods()}
    with Load(computing.url, SERVED, grown) as load:
        load.wait_for_answers(4)
        computing.apply(with_adapter(["llama", "added"]))
        computing.wait_until_ready()
        with Load(computing.url, {"added": RED, "poet": RED}, grown) as newcomers:
            newcomers.wait_for_answers(8)
        computing.apply(with_adapter(["llama"]))
        computing.wait_until("added is served no more", lambda: served_models(computing) == {"llama", "poet"})
        load.wait_for_answers(6)

    assert_right(load)
    assert_right(newcomers)
    assert {pod.uid for pod in computing.pods()} == before
    assert not any(pod.restarts for pod in computing.pods())


def test_every_client_gets_all_of_its_answer_when_an_engine_dies(computing: PodsOfPool, grown: Path) -> None:
    with Load(computing.url, SERVED, grown) as load:
        load.wait_for_answers(3)
        computing.kill(computing.pods("engine")[0])
        load.wait_for_answers(6)
        computing.wait_until_all_ready("engine", ENGINES, 180)
        load.wait_for_answers(6)

    assert_right(load)


def make_mixtral(like: Path, directory: Path) -> None:
    """One with random weights, and the tokenizer and sizes of another model."""
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    shutil.copytree(like, directory)
    of = json.loads((like / "config.json").read_text("utf-8"))
    sizes = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings")
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    shape: dict[str, Any] = {name: of[name] for name in (*sizes, *ids)} | {"head_dim": 32, "num_hidden_layers": 2}
    experts: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 128}
    config = MixtralConfig(**shape, **experts, initializer_range=0.2)
    torch.manual_seed(0)
    MixtralForCausalLM(config).save_pretrained(directory)


def with_adapter(names: Sequence[str]) -> dict[str, Any]:
    """Tenant red's models, the first of them with the adapter."""
    made = model_pool("red", names)
    made["spec"]["models"][0]["adapters"] = [{"name": "poet", "source": {"hostPath": "adapters/poet"}}]
    return made


def served_models(pool: PodsOfPool) -> set[str]:
    """What tenant red is offered."""
    with clients.client(pool.url, RED, max_retries=2) as client:
        return {model.id for model in client.models.list()}


def assert_right(load: Load) -> None:
    """Nothing failed, every answer is transformers', and the same question always got the same one."""
    load.check()
    answers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in load.exchanges:
        answers[one.chat.model, one.chat.question].add(one.text)
    assert {question: found for question, found in answers.items() if len(found) > 1} == {}
