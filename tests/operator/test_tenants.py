"""Tenants in manifests: from a ModelPool to the file that a gateway reads."""

from __future__ import annotations

import json
from pathlib import Path

from tests.operator.test_manifests import GPU, MODELS, ONE_MODEL, load, problems

from aegaeon_gateway.tenancy import TenantsFile
from aegaeon_operator.reconcile.tenants import tenants_file
from aegaeon_operator.spec import load_manifests

RED = "\n  tenants:\n    - {name: red, keyFile: ./red.key, quota: {requestsPerMinute: 60}}\n"
BLUE = "\n  tenants:\n    - {name: blue, keyFile: ./blue.key, models: [llama]}\n"
SECOND = ONE_MODEL.replace("name: llama", "name: other").replace("name: quickstart", "name: second", 1)


def test_the_gateway_reads_what_the_manifests_say(tmp_path: Path) -> None:
    (tmp_path / "red.key").write_text("sk-red")
    (tmp_path / "blue.key").write_text("sk-blue")
    (pool,) = load(
        tmp_path, GPU, MODELS.rstrip() + RED + "    - {name: blue, keyFile: ./blue.key, models: [llama]}\n"
    ).pools
    (tmp_path / "tenants.json").write_text(json.dumps(tenants_file(pool)))
    directory = TenantsFile(tmp_path / "tenants.json").current()
    red, blue = (directory.identify(f"Bearer sk-{name}") for name in ("red", "blue"))
    assert red.models == {"llama", "mistral", "qwen2", "qwen3"}
    assert blue.models == {"llama"}
    assert red.quota.requests_per_minute == 60


def test_a_pool_without_tenants_and_quotas_needs_no_file() -> None:
    (pool,) = load_manifests(Path(__file__).parents[2] / "examples" / "quickstart", Path("/models")).pools
    assert tenants_file(pool) is None


def test_a_tenant_of_two_model_pools_has_the_models_of_both_and_open_models_stay_open(tmp_path: Path) -> None:
    third = ONE_MODEL.replace("name: llama", "name: free").replace("name: quickstart", "name: third", 1)
    documents = (GPU, ONE_MODEL.rstrip() + RED, SECOND.rstrip() + RED, third)
    found = tenants_file(load(tmp_path, *documents).pools[0])
    assert found is not None
    assert found["open_models"] == ["free"]
    assert [tenant["models"] for tenant in found["tenants"]] == [["llama", "other"]]  # type: ignore[attr-defined]  # JSON


def test_a_quota_of_a_model_counts_without_tenants(tmp_path: Path) -> None:
    limited = ONE_MODEL.replace(
        "source: {hostPath: llama}", "source: {hostPath: llama}\n      quota: {tokensPerMinute: 5}"
    )
    found = tenants_file(load(tmp_path, GPU, limited).pools[0])
    assert found is not None
    assert found["model_quotas"] == {"llama": {"requests_per_minute": None, "tokens_per_minute": 5}}
    assert found["open_models"] == ["llama"]


def test_tenants_that_contradict_each_other_or_the_models_are_told_so(tmp_path: Path) -> None:
    wrong = problems(tmp_path, GPU, SECOND.rstrip() + BLUE)
    assert [one.partition("spec.")[2] for one in wrong] == [
        "tenants[0].models: 'llama' is no model of this ModelPool; known: other"
    ]
    other_key = RED.replace("red.key", "other.key")
    (twice,) = problems(tmp_path, GPU, ONE_MODEL.rstrip() + RED, SECOND.rstrip() + other_key)
    assert "'red' has another keyFile or quota in" in twice
