"""Adapters in manifests: what is refused, and how they reach scheduler, tenants and status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operator_objects import Json, gpu_pool, model_pool, observed
from tests.operator.test_manifests import GPU, ONE_MODEL, load, problems

from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.facts import ModelFacts, SchedulerFacts
from aegaeon_operator.reconcile.cluster.report import reports
from aegaeon_operator.reconcile.processes import scheduler_settings, sidecar_settings
from aegaeon_operator.reconcile.tenants import tenants_file

VLLM = GPU.replace("backend: torch\n", "backend: vllm\n  adapters: {memory: 1Mi, maxRank: 8, maxLoaded: 2}\n", 1)
POET = "\n      adapters:\n        - {name: poet, source: {hostPath: ./poet}}"


def one_model(adapters: str = POET) -> str:
    return ONE_MODEL.replace("source: {hostPath: llama}", "source: {hostPath: llama}" + adapters)


def test_adapters_reach_the_scheduler_and_their_bounds_the_engines(tmp_path: Path) -> None:
    (pool,) = load(tmp_path, VLLM, one_model()).pools
    entry: Any = scheduler_settings("p", pool.gpu_pool.spec, pool.model_pools)["models"]
    assert entry[0]["adapters"] == [{"name": "poet", "source": {"directory": str(tmp_path / "poet")}}]
    settings = sidecar_settings("unified", pool.gpu_pool.spec)
    assert settings["adapters"] == {"max_rank": 8, "max_loaded": 2, "device_bytes": 1 << 20}


def test_adapters_without_room_for_them_and_names_given_twice_are_refused_in_sentences(tmp_path: Path) -> None:
    (without,) = problems(tmp_path, GPU, one_model())
    assert "spec.models[0].adapters: " in without
    assert "has no spec.adapters (backend vllm)" in without
    (torch,) = problems(tmp_path, GPU.replace("spec:\n", "spec:\n  adapters: {memory: 1Mi}\n", 1), ONE_MODEL)
    assert "adapters need backend vllm; backend torch does not support them" in torch
    (full,) = problems(tmp_path, VLLM.replace("memory: 1Mi", "memory: 13Mi"), ONE_MODEL)
    assert "adapters.memory 13Mi leaves less than one slab of memory.deviceBytes 13Mi" in full
    (twice,) = problems(tmp_path, VLLM, one_model(POET.replace("poet,", "llama,")))
    assert "spec.models[0].adapters[0].name: 'llama' is already served by" in twice
    (rank,) = problems(tmp_path, VLLM.replace("maxRank: 8", "maxRank: 9"), ONE_MODEL)
    assert "spec.adapters.maxRank: 9 is not known; allowed: 8, 16" in rank


def test_a_tenant_may_be_granted_an_adapter_alone(tmp_path: Path) -> None:
    (tmp_path / "red.key").write_text("sk-red")
    granted = "\n  tenants:\n    - {name: red, keyFile: ./red.key, models: [poet]}\n"
    found: Any = tenants_file(load(tmp_path, VLLM, one_model().rstrip() + granted).pools[0])
    assert [tenant["models"] for tenant in found["tenants"]] == [["poet"]]
    everything = granted.replace(", models: [poet]", "")
    found = tenants_file(load(tmp_path, VLLM, one_model().rstrip() + everything).pools[0])
    assert [tenant["models"] for tenant in found["tenants"]] == [["llama", "poet"]]


def with_adapters(*names: str, path: str = "poet") -> Json:
    pool = model_pool("red", "llama")
    pool["spec"]["models"][0]["adapters"] = [{"name": name, "source": {"hostPath": path}} for name in names]
    return pool


ROOM: Json = {"backend": "vllm", "adapters": {"memory": "1Mi"}}


def states(*objects: Json, **facts: Any) -> dict[str, Json]:
    seen = observed(*objects, **facts)
    (report,) = (one for one in reports(seen, desired(seen), {}) if one.about.name == "red")
    return {one["name"]: one for one in report.status["models"]}


def test_on_a_cluster_an_adapter_is_refused_alone_with_its_sentence() -> None:
    found = states(gpu_pool(), with_adapters("poet"))
    assert found["poet"]["state"] == "Failed"
    assert "the GpuPool has no spec.adapters" in found["poet"]["reason"]
    assert found["llama"]["state"] == "Cold"
    outside = states(gpu_pool(**ROOM), with_adapters("poet", path="../poet"))
    assert outside["llama"]["state"] == "Cold"
    assert outside["poet"]["state"] == "Failed"


def test_the_status_has_adapters_beside_their_base_as_engines_report_them() -> None:
    pools = gpu_pool(**ROOM), with_adapters("poet")
    known = {"llama": ModelFacts(phase="cached"), "poet": ModelFacts(phase="failed", reason="poet: its rank is 64")}
    scheduler = SchedulerFacts(incarnation="one", models=known)
    found = states(*pools, scheduler=scheduler)
    assert (found["poet"]["parent"], found["poet"]["reason"]) == ("llama", "poet: its rank is 64")
    assert found["llama"]["state"] == "Cached"
    catalog: Any = desired(observed(*pools)).catalog
    root = {"directory": "/srv/models/poet", "root": "/srv/models"}
    assert catalog[0]["adapters"] == [{"name": "poet", "source": root}]
    assert desired(observed(*pools)).tenants["open_models"] == ["llama", "poet"]
