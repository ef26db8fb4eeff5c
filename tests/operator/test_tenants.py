"""Tenants in manifests: from a ModelPool to the file that a gateway reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict
from operator_objects import Json, gpu_pool, model_pool, observed
from tests.operator.test_manifests import GPU, MODELS, ONE_MODEL, load, problems

from aegaeon_gateway.tenancy import TenantsFile
from aegaeon_operator.podrunner import unusable_keys
from aegaeon_operator.reconcile.cluster.attach import Attached, attach
from aegaeon_operator.reconcile.tenants import tenants_file
from aegaeon_operator.spec import load_manifests
from aegaeon_proto.engine.catalog import Terms, Tier
from aegaeon_proto.parts import joined
from aegaeon_proto.v1 import gateway_pb2, model_pb2

RED = "\n  tenants:\n    - {name: red, keyFile: ./red.key, quota: {requestsPerMinute: 60}}\n"
BLUE = "\n  tenants:\n    - {name: blue, keyFile: ./blue.key, models: [llama]}\n"
SECOND = ONE_MODEL.replace("name: llama", "name: other").replace("name: quickstart", "name: second", 1)


def test_the_gateway_gets_the_tenants_of_the_manifests(tmp_path: Path) -> None:
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


def test_tenants_that_contradict_each_other_or_the_models_are_refused(tmp_path: Path) -> None:
    wrong = problems(tmp_path, GPU, SECOND.rstrip() + BLUE)
    assert [one.partition("spec.")[2] for one in wrong] == [
        "tenants[0].models: tenant 'blue' names 'llama', which is not a model or adapter of this ModelPool; "
        "known: other"
    ]
    other_key = RED.replace("red.key", "other.key")
    (twice,) = problems(tmp_path, GPU, ONE_MODEL.rstrip() + RED, SECOND.rstrip() + other_key)
    assert "'red' has a different keyFile or quota in" in twice


def attached(*pools: Json, **facts: Any) -> Attached:
    return attach(observed(gpu_pool(allowedNamespaces=["team"]), *pools, **facts))


def tenants_of(found: Attached) -> list[Json]:
    """As gateways receive them."""
    parts = [{"models": [], "tenants": document} for document in found.access.values()]
    tenants: list[Json] = joined(parts)["tenants"]["tenants"]
    return tenants


def tenant(name: str, **about: Any) -> Json:
    return {"name": name, "keySecretRef": {"name": name, "key": "keys"}, **about}


SECRETS = {
    ("infra", "acme"): {"keys": "sk-1"},
    ("infra", "other"): {"keys": "sk-2"},
    ("team", "acme"): {"keys": "sk-3"},
}


def test_a_grant_of_an_unknown_model_is_reported_on_a_cluster_in_the_same_words(tmp_path: Path) -> None:
    (said,) = attached(
        model_pool("red", "llama", tenants=[tenant("acme", models=["lama", "llama"])]), secrets=SECRETS
    ).refused.values()
    assert said.reason == "GrantUnknown"
    wrong = problems(tmp_path, GPU, ONE_MODEL.rstrip() + RED.replace("quota", "models: [lama], quota"))
    assert [one.partition("tenant ")[2] for one in wrong] == [
        said.message.removeprefix("tenant ").replace("acme", "red")
    ]


def test_a_tenant_that_is_another_one_elsewhere_keeps_keys_and_quota_of_the_older_model_pool() -> None:
    quota = {"requestsPerMinute": 60}
    old = model_pool("old", "llama", tenants=[tenant("acme", quota=quota)])
    young = model_pool("young", "qwen", created=1, tenants=[tenant("acme"), tenant("other")])
    for order in ((old, young), (young, old)):
        found = attached(*order, secrets=SECRETS)
        assert {uid: one.reason for uid, one in found.refused.items()} == {"ModelPool-infra-young": "TenantConflict"}
        acme, other = tenants_of(found)
        assert (acme["models"], acme["quota"]["requests_per_minute"]) == (["llama"], 60)
        assert (other["name"], other["models"]) == ("other", ["qwen"])


def test_the_same_tenant_of_two_model_pools_has_the_models_of_both_on_a_cluster_too() -> None:
    pools = [model_pool(name, name, tenants=[tenant("acme")]) for name in ("one", "two")]
    found = attached(*pools, secrets=SECRETS)
    assert found.refused == {}
    assert [one["models"] for one in tenants_of(found)] == [["one", "two"]]


def test_a_tenant_of_two_model_pools_has_the_terms_of_each_for_its_models() -> None:
    pools = [
        model_pool("one", "a", tenants=[tenant("acme", weight=3, tier="batch")]),
        model_pool("two", "b", tenants=[tenant("acme", tier="interactive")]),
        model_pool("three", "c", tenants=[tenant("acme")]),
    ]
    result = attached(*pools, secrets=SECRETS)
    assert result.refused == {}
    (acme,) = tenants_of(result)
    message = ParseDict(acme, gateway_pb2.Tenant())
    assert {model: (terms.weight, terms.tier) for model, terms in message.terms.items()} == {
        "a": (3, model_pb2.TIER_BATCH),
        "b": (1, model_pb2.TIER_INTERACTIVE),
    }


def test_terms_of_tenants_reach_a_gateway_without_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "red.key").write_text("sk-red")
    documents = (GPU, ONE_MODEL.rstrip() + RED.replace("quota", "weight: 2, tier: batch, quota"), SECOND.rstrip() + RED)
    (tmp_path / "tenants.json").write_text(json.dumps(tenants_file(load(tmp_path, *documents).pools[0])))
    (red,) = TenantsFile(tmp_path / "tenants.json").current().tenants
    assert red.terms == {"llama": Terms(Tier.BATCH, 2)}


def test_tenants_of_two_namespaces_are_two() -> None:
    there = model_pool("red", "qwen", namespace="team", tenants=[tenant("acme", quota={"requestsPerMinute": 1})])
    found = attached(model_pool("red", "llama", tenants=[tenant("acme")]), there, secrets=SECRETS)
    assert found.refused == {}
    assert [one["name"] for one in tenants_of(found)] == ["acme", "team/acme"]


def test_all_errors_are_reported_at_once() -> None:
    tenants = [tenant("acme", models=["a"]), tenant("gone", models=["b"]), {"name": "file", "keyFile": "/keys"}]
    models = [{"name": "llama", "source": {"hostPath": "/etc"}}, {"name": "qwen", "source": {"s3": {"bucket": "m"}}}]
    (said,) = attached(model_pool("red", models=models, tenants=tenants), secrets=SECRETS).refused.values()
    assert said.reason == "HostPathNotAllowed"
    for words in ("'a'", "'b'", "Secret gone", "keyFile", "qwen needs a disk tier", "llama: /etc"):
        assert words in said.message


def test_a_key_of_two_tenants_is_the_older_ones() -> None:
    both = {**SECRETS, ("infra", "other"): {"keys": "sk-1\nsk-2\n"}}
    pools = (
        model_pool("red", "llama", tenants=[tenant("acme")]),
        model_pool("blue", "qwen", created=1, tenants=[tenant("other")]),
    )
    found = attached(*pools, secrets=both)
    assert {uid: one.reason for uid, one in found.refused.items()} == {"ModelPool-infra-blue": "KeyConflict"}
    acme, other = (set(one["key_sha256"]) for one in tenants_of(found))
    assert (len(acme), len(other), acme & other) == (1, 1, set())


def test_key_files_are_checked_before_anything_starts(tmp_path: Path) -> None:
    blue = "    - {name: blue, keyFile: ./blue.key}\n    - {name: green, keyFile: ./green.key}\n"
    (pool,) = load(tmp_path, GPU, ONE_MODEL.rstrip() + RED + blue).pools
    (tmp_path / "red.key").write_text("sk-1")
    (tmp_path / "blue.key").write_text("sk-2 sk-1")
    missing, shared = unusable_keys(pool)
    assert "spec.tenants[2].keyFile" in missing
    assert "green.key cannot be read" in missing
    assert shared.endswith("spec.tenants[1]: tenant 'blue' has a key of tenant 'red'; use different keys")
    (tmp_path / "green.key").write_text("")
    assert "is empty; write a key to it" in unusable_keys(pool)[0]


def test_secrets_whose_names_have_dots_are_never_confused() -> None:
    refs = [{"name": "a.b", "key": "c"}, {"name": "a", "key": "b.c"}, {"name": "a.b.c", "key": "d"}]
    models = [
        {"name": f"m{number}", "source": {"huggingFace": {"repository": "org/m", "credentialsSecretRef": ref}}}
        for number, ref in enumerate(refs)
    ]
    secrets = {("infra", str(ref["name"])): {str(ref["key"]): str(number)} for number, ref in enumerate(refs)}
    found = attached(model_pool("red", models=models), secrets=secrets)
    assert found.refused == {}
    assert sorted(found.credentials.values()) == ["0", "1", "2"]
    assert "infra.a.b.c" in found.credentials
