"""What is decided for a pool in a cluster: whom it serves, what should exist; and deciding twice changes nothing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_objects import a_child, by_key, entry, gpu_pool, model_pool, observed
from pydantic import ValidationError

from aegaeon_gateway.config import load_config as read_gateway_config
from aegaeon_operator.kube.compare import is_up_to_date
from aegaeon_operator.reconcile.cluster.conditions import is_due, notes
from aegaeon_operator.reconcile.cluster.desired import Desired, desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, EngineFacts, Json, ModelFacts, Report, SchedulerFacts
from aegaeon_operator.reconcile.cluster.report import reports
from aegaeon_operator.spec.explain import explain
from aegaeon_operator.spec.resources import GpuPool
from aegaeon_proto.outbound.egress import Egress
from aegaeon_scheduler.config import load_config as read_scheduler_config
from aegaeon_sidecar.config import read_config as read_sidecar_config

POOLS = (gpu_pool(), model_pool("red", "llama"), model_pool("blue", "qwen", created=1))


def decided(*objects: Json, **facts: Any) -> Desired:
    return desired(observed(*objects, **facts))


def affinity(workload: Json) -> Json:
    found: Json = workload["spec"]["template"]["spec"]["affinity"]["podAffinity"]
    return found


def reason_of(objects: tuple[Json, ...], name: str, kind: str = "Accepted", **facts: Any) -> tuple[str, str, str]:
    seen = observed(*objects, **facts)
    (report,) = (one for one in reports(seen, desired(seen), {}) if one.about.name == name)
    (found,) = (one for one in report.status["conditions"] if one["type"] == kind)
    return found["status"], found["reason"], found["message"]


def test_a_pool_has_a_scheduler_gateways_engines_and_their_network_policies() -> None:
    kinds = {(key.kind, key.name) for key in by_key(decided(*POOLS).manifests)}
    assert {
        ("Deployment", "pool-scheduler"),
        ("Deployment", "pool-gateway"),
        ("StatefulSet", "pool-engine"),
        ("Service", "pool-gateway"),
        ("Service", "pool-engine"),
        ("PodDisruptionBudget", "pool-gateway"),
        ("Secret", "pool-config"),
        ("NetworkPolicy", "pool-scheduler"),
    } <= kinds


def test_processes_can_parse_the_configuration_written_for_them(tmp_path: Path) -> None:
    secret = by_key(decided(*POOLS).manifests)[ChildKey("Secret", "infra", "pool-config")]
    for name in ("scheduler", "gateway", "engine"):
        (tmp_path / f"{name}.json").write_text(entry(secret, f"{name}.json"), "utf-8")
    scheduler = read_scheduler_config(tmp_path / "scheduler.json", "pool-scheduler-x")
    assert [model.name for model in scheduler.models] == ["llama", "qwen"]
    assert scheduler.models[0].source.directory == "/srv/models/llama"
    assert read_gateway_config(tmp_path / "gateway.json").tenants_by_scheduler
    assert read_sidecar_config(tmp_path / "engine.json").role == "unified"


def test_a_thousand_models_with_the_longest_names_fit_a_secret() -> None:
    names = [f"{number:04}".ljust(200, "m") for number in range(1024)]
    pools = (gpu_pool(), model_pool("red", *names[:512]), model_pool("blue", *names[512:]))
    config = by_key(decided(*pools).manifests)[ChildKey("Secret", "infra", "pool-config")]
    assert sum(len(entry(config, name)) for name in config["data"]) <= 1 << 20, "what API servers take"


def test_models_are_added_and_removed_without_changing_the_pod_template() -> None:
    before, after = (by_key(decided(*pools).manifests) for pools in (POOLS[:2], POOLS))
    workloads = [key for key in before if key.kind in ("Deployment", "StatefulSet")]
    assert workloads
    assert {key: before[key] for key in workloads} == {key: after[key] for key in workloads}


def test_another_memory_plan_replaces_engines_and_nothing_else() -> None:
    memory = {"deviceBytes": "26Mi", "slabSize": "256Ki", "hostModelCache": "32Mi", "hostKv": "12Mi"}
    before, after = by_key(decided(*POOLS).manifests), by_key(decided(gpu_pool(memory=memory), *POOLS[1:]).manifests)
    assert {key.name for key in before if before[key] != after[key]} == {"pool-engine", "pool-config"}


def test_of_two_objects_with_one_name_the_older_has_it_and_the_other_reports_the_conflict() -> None:
    pools = (gpu_pool(), model_pool("young", "llama", "mine", created=5), model_pool("old", "llama", created=1))
    assert {name: pool.name for name, (pool, _) in decided(*pools).attached.models.items()} == {
        "llama": "old",
        "mine": "young",
    }
    assert reason_of(pools, "old")[:2] == ("True", "Accepted")
    assert reason_of(pools, "young")[:2] == ("False", "NameConflict")


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ((model_pool("red", "llama"),), "GpuPoolNotFound"),
        ((gpu_pool(), model_pool("red", "llama", namespace="team")), "NamespaceNotAllowed"),
        ((gpu_pool(volumes={}), model_pool("red", "llama")), "HostPathNotAllowed"),
        ((gpu_pool(), model_pool("red", "../../etc")), "HostPathNotAllowed"),
        ((gpu_pool(), model_pool("red", "a", tenants=[{"name": "a", "keyFile": "/k"}])), "KeyFileNotHere"),
    ],
)
def test_a_model_that_cannot_be_served_reports_why(objects: tuple[Json, ...], reason: str) -> None:
    broken = tuple(
        {**one, "spec": {**one["spec"], "models": [{"name": "llama", "source": {"hostPath": "../../etc"}}]}}
        if "../../etc" in json.dumps(one)
        else one
        for one in objects
    )
    assert reason_of(broken, "red")[:2] == ("False", reason)


def test_a_namespace_that_is_allowed_is_served_and_its_route_may_cross() -> None:
    access = {"parentRefs": [{"name": "public"}], "hostnames": ["models.example.com"], "pathPrefix": "/team"}
    pools = (gpu_pool(allowedNamespaces=["team"]), model_pool("red", "llama", namespace="team", gateway=access))
    found = by_key(decided(*pools).manifests)
    route = found[ChildKey("HTTPRoute", "team", "red")]
    assert route["spec"]["rules"][0]["backendRefs"][0]["namespace"] == "infra"
    assert route["metadata"]["ownerReferences"][0]["kind"] == "ModelPool"
    grant = found[ChildKey("ReferenceGrant", "infra", "pool-routes")]
    assert grant["spec"]["from"][0]["namespace"] == "team"


def test_keys_are_hashed_and_a_tenant_without_any_is_kept_out() -> None:
    tenants = [{"name": "red", "keySecretRef": {"name": "keys", "key": "keys"}}]
    pools = (gpu_pool(), model_pool("red", "llama", tenants=tenants))
    secrets = {("infra", "keys"): {"keys": "sk-before\nsk-after\n"}}
    known = decided(*pools, secrets=secrets).tenants
    assert known is not None
    assert known["tenants"][0]["key_sha256"] == sorted(
        hashlib.sha256(one).hexdigest() for one in (b"sk-before", b"sk-after")
    )
    config = by_key(decided(*pools, secrets=secrets).manifests)[ChildKey("Secret", "infra", "pool-config")]
    assert "sk-" not in "".join(entry(config, name) for name in config["data"])
    unknown = decided(*pools).tenants
    assert unknown is not None
    assert (unknown["open_models"], unknown["tenants"][0]["key_sha256"]) == ([], [])
    assert reason_of(pools, "red")[:2] == ("False", "SecretNotFound")


def test_no_pod_without_a_device_has_more_rights_than_the_strictest_standard_grants() -> None:
    for manifest in decided(*POOLS).manifests:
        if manifest["kind"] != "Deployment":
            continue
        pod = manifest["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})
            assert context["readOnlyRootFilesystem"]


def test_objects_are_written_only_where_they_differ_from_the_desired_state() -> None:
    manifests = decided(*POOLS).manifests
    for manifest in manifests:
        assert is_up_to_date(json.loads(json.dumps(manifest)) | {"status": {"x": 1}}, manifest)
    (engines,) = (one for one in manifests if one["kind"] == "StatefulSet")
    scaled = json.loads(json.dumps(engines))
    scaled["spec"]["replicas"] = 7
    assert not is_up_to_date(scaled, engines)
    assert is_up_to_date({"kind": "Pod", "cpu": "2"}, {"kind": "Pod", "cpu": "2000m"})


@settings(deadline=None)
@given(st.permutations([*POOLS, model_pool("late", "llama", created=9)]))
def test_the_order_in_which_objects_are_seen_changes_nothing(objects: list[Json]) -> None:
    assert decided(*objects) == decided(*POOLS, model_pool("late", "llama", created=9))


@settings(deadline=None)
@given(st.sets(st.integers(0, 40)))
def test_after_an_interruption_only_the_missing_objects_are_written(applied: set[int]) -> None:
    """A crash after any subset of writes: the next look finds those as wanted, and decides the same for the rest."""
    first = decided(*POOLS)
    there = tuple(one for place, one in enumerate(first.manifests) if place in applied)
    again = desired(observed(*POOLS, *there))
    assert again.manifests == first.manifests
    assert again.leftovers == ()


def test_objects_no_longer_desired_are_deleted_and_certificates_stay() -> None:
    old = a_child("Service", "pool-old")
    tls = [a_child("Secret", f"pool-{part}") for part in ("ca", "scheduler-tls", "gateway-tls", "engine-tls")]
    assert decided(*POOLS, old, *tls).leftovers == (ChildKey("Service", "infra", "pool-old"),)


def test_an_unchanged_status_is_not_written_and_numbers_alone_once_a_minute() -> None:
    pools = json.loads(json.dumps(POOLS))
    first = {one.about.uid: one for one in reports(observed(*pools), decided(*pools), {})}
    for one in pools:
        one["status"] = first[one["metadata"]["uid"]].status
    (report,) = (one for one in reports(observed(*pools), decided(*pools), {}) if one.about.name == "red")
    assert not is_due(report, None, 0.0)
    report.status["models"][0]["queued"] = 5
    assert [is_due(report, 100.0, now) for now in (101.0, 159.0, 160.0)] == [False, False, True]


def test_the_progress_of_a_fetch_is_in_the_condition_and_in_events() -> None:
    pools = json.loads(json.dumps(POOLS[:2]))

    def fetching(done: int) -> Report:
        facts = ModelFacts("fetching", bytes_done=done, bytes_total=15_200_000_000, bytes_per_s=9e8, remaining_s=8.0)
        seen = observed(
            *pools,
            scheduler=SchedulerFacts("one", {"llama": facts}, (EngineFacts("pool-engine-0", "unified", True, 0, 0.0),)),
        )
        (found,) = (one for one in reports(seen, desired(seen), {}) if one.about.name == "red")
        pools[1]["status"] = found.status
        return found

    fetching(0)
    (note,) = (one for one in notes(fetching(7_600_000_000)) if one.reason == "Fetching")
    assert note.message == "not in a host cache yet: llama (7.6 of 15.2 GB at 900 MB/s, 8 s left)"
    assert notes(fetching(7_600_000_000)) == []


def test_a_refusal_of_the_scheduler_is_reported_on_its_model_pool_and_counted_on_the_gpu_pool() -> None:
    both = {"llama": ModelFacts("cached"), "qwen": ModelFacts("cached")}
    why = "the new version cannot be served, the old one stays in use: config.json: missing"
    scheduler = SchedulerFacts("one", both, refused={"llama": why})
    assert reason_of(POOLS, "red", scheduler=scheduler) == ("False", "ModelRefused", f"llama: {why}")
    assert reason_of(POOLS, "red", "Ready", scheduler=scheduler)[:2] == ("False", "ModelRefused")
    assert reason_of(POOLS, "blue", scheduler=scheduler)[:2] == ("True", "Accepted")
    status, _, message = reason_of(POOLS, "pool", scheduler=scheduler)
    assert (status, message.endswith("models refused: 1, see their ModelPools")) == ("True", True)


def test_a_model_that_changes_is_served_and_shown_to_be_changing() -> None:
    facts = SchedulerFacts("one", {"llama": ModelFacts("cached")}, changing={"llama": "being prepared"})
    assert reason_of(POOLS, "red", "Progressing", scheduler=facts) == ("True", "ModelChanging", "llama: being prepared")
    assert reason_of(POOLS, "red", scheduler=facts)[0] == "True"
    assert reason_of(POOLS, "blue", "Progressing", scheduler=facts)[1] != "ModelChanging"


def test_engines_of_one_node_are_listed_for_hand_off() -> None:
    pools = (gpu_pool(engines=None, prefill={"replicas": 1}, decode={"replicas": 1}), *POOLS[1:])
    pools[0]["spec"].pop("engines")
    made = by_key(decided(*pools).manifests)
    decode, prefill = (made[ChildKey("StatefulSet", "infra", f"pool-{role}")] for role in ("decode", "prefill"))
    (needed,) = affinity(decode)["requiredDuringSchedulingIgnoredDuringExecution"]
    assert needed["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "prefill"
    (wished,) = affinity(prefill)["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wished["podAffinityTerm"]["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "decode"


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ({"huggingFace": {"repository": "org/gated"}}, "hub"),
        ({"s3": {"bucket": "models"}}, "s3"),
        ({"http": {"url": "https://example.org/m"}}, "http"),
    ],
)
def test_credentials_of_every_kind_of_source_reach_the_pods_as_a_file(kind: Json, place: str) -> None:
    (source,) = kind.values()
    source = {**source, "credentialsSecretRef": {"name": "store", "key": "token"}}
    models = [{"name": "m", "source": dict.fromkeys(kind, source)}]
    memory = {**gpu_pool()["spec"]["memory"], "disk": {"path": "/cache"}}
    pools = (gpu_pool(memory=memory), model_pool("red", models=models))
    assert reason_of(pools, "red")[:2] == ("False", "SecretNotFound")
    found = decided(*pools, secrets={("infra", "store"): {"token": "hf_secret"}})
    (entry_of_catalog,) = found.catalog
    file = entry_of_catalog["source"][place]["credentials_file"]
    assert file == "/etc/aegaeon/credentials/infra.store.token"
    secret = by_key(found.manifests)[ChildKey("Secret", "infra", "pool-credentials")]
    assert entry(secret, "infra.store.token") == "hf_secret"


@pytest.mark.parametrize("disk", [None, {"path": "/cache"}])
def test_fetches_reach_only_allowed_hosts_and_send_nothing_of_the_pods_environment(
    tmp_path: Path, disk: Json | None
) -> None:
    memory = gpu_pool()["spec"]["memory"] | ({"disk": disk} if disk else {})
    pool = gpu_pool(memory=memory, allowedSources=["huggingface.co", "10.0.0.0/8"])
    secret = by_key(decided(pool, model_pool("red", "llama")).manifests)[ChildKey("Secret", "infra", "pool-config")]
    for name in ("gateway", "engine"):
        (tmp_path / name).write_text(entry(secret, f"{name}.json"), "utf-8")
    engine, gateway = read_sidecar_config(tmp_path / "engine"), read_gateway_config(tmp_path / "gateway")
    assert engine.sources.allowed == gateway.allowed_sources == ("huggingface.co", "10.0.0.0/8")
    assert not engine.sources.ambient_credentials
    assert not gateway.ambient_credentials
    assert str(engine.disk.folder) == ("/cache" if disk else "/var/cache/aegaeon/hub")


EGRESS: Json = {
    "httpsProxy": "http://proxy.example:3128",
    "noProxy": ["10.0.0.0/8"],
    "credentialsSecretRef": {"name": "proxy", "key": "user"},
    "caConfigMapRef": {"name": "company", "key": "ca.pem"},
}


def test_the_way_out_is_in_the_configuration_of_each_process_and_in_no_environment(tmp_path: Path) -> None:
    made = by_key(decided(gpu_pool(egress=EGRESS), model_pool("red", "llama")).manifests)
    secret = made[ChildKey("Secret", "infra", "pool-config")]
    for name in ("gateway", "engine", "scheduler"):
        (tmp_path / name).write_text(entry(secret, f"{name}.json"), "utf-8")
    engine, gateway = read_sidecar_config(tmp_path / "engine"), read_gateway_config(tmp_path / "gateway")
    scheduler = read_scheduler_config(tmp_path / "scheduler", holder="test")
    assert engine.sources.egress == gateway.egress == scheduler.egress
    assert gateway.way_out == Egress(
        "http://proxy.example:3128",
        no_proxy=("10.0.0.0/8", "svc", "cluster.local"),
        credentials_file="/etc/aegaeon/egress-proxy/credentials",
        ca_file="/etc/aegaeon/egress-ca/ca.crt",
    )
    pods = [one["spec"]["template"]["spec"] for one in made.values() if "template" in one.get("spec", {})]
    assert {volume["configMap"]["name"] for pod in pods for volume in pod["volumes"] if "configMap" in volume} == {
        "company"
    }
    for pod in pods:
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["egress-proxy"]["secret"]["items"] == [{"key": "user", "path": "credentials"}]
        assert volumes["egress-ca"]["configMap"]["items"] == [{"key": "ca.pem", "path": "ca.crt"}]
        (container,) = pod["containers"]
        assert not [env for env in container.get("env", ()) if "proxy" in env["name"].lower()]


def test_a_pool_without_a_way_out_has_the_configuration_that_former_images_read() -> None:
    secret = by_key(decided(*POOLS).manifests)[ChildKey("Secret", "infra", "pool-config")]
    assert not [name for name in ("gateway", "engine", "scheduler") if "egress" in entry(secret, f"{name}.json")]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"httpsProxy": "http://user:secret@proxy.example"}, "without user and path"),
        ({"httpsProxy": "https://proxy.example"}, "http://HOST:PORT of a proxy"),
        ({"httpProxy": "http://proxy.example:70000"}, "http://HOST:PORT of a proxy"),
        ({"noProxy": ["http://a.example"]}, "a host such as example.com"),
        ({"noProxy": ["10.0.0.1/8"]}, "a network such as 10.0.0.0/8"),
        ({"credentialsSecretRef": {"name": "proxy", "key": "user"}}, "needs httpsProxy or httpProxy"),
    ],
)
def test_a_way_out_that_is_none_is_refused_and_no_password_is_repeated(wrong: Json, said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        GpuPool.model_validate_json(json.dumps(gpu_pool(egress=wrong)))
    sentences = " ".join(explain(refused.value, GpuPool))
    assert said in sentences
    assert "secret" not in sentences.replace("credentialsSecretRef", "")


def test_no_name_of_a_secret_is_too_long_for_the_one_that_holds_all_credentials() -> None:
    ref = {"name": "s" * 63, "key": "k" * 253}
    models = [{"name": "m", "source": {"huggingFace": {"repository": "org/gated", "credentialsSecretRef": ref}}}]
    secrets = {("infra", ref["name"]): {ref["key"]: "hf_secret"}}
    found = decided(gpu_pool(), model_pool("red", models=models), secrets=secrets)
    (file,) = by_key(found.manifests)[ChildKey("Secret", "infra", "pool-credentials")]["data"]
    assert len(file) <= 253
    assert found.catalog[0]["source"]["hub"]["credentials_file"] == f"/etc/aegaeon/credentials/{file}"


def test_conditions_that_no_longer_hold_are_removed() -> None:
    access = {"parentRefs": [{"name": "public"}], "hostnames": ["models.example.com"]}
    guarded = {**access, "header": {"name": "x-team", "value": "red"}}
    placed = {"nodeSelector": {"disk": "fast"}, "tolerations": [{"operator": "Exists"}], "labels": {"team": "red"}}
    before = by_key(decided(gpu_pool(podTemplate=placed), model_pool("red", "llama", gateway=guarded)).manifests)
    open_to_all = {"parentRefs": access["parentRefs"]}
    after = by_key(decided(gpu_pool(), model_pool("red", "llama", gateway=open_to_all)).manifests)
    for key in (ChildKey("StatefulSet", "infra", "pool-engine"), ChildKey("HTTPRoute", "infra", "red")):
        assert is_up_to_date(before[key], before[key])
        assert not is_up_to_date(before[key], after[key])
