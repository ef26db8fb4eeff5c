"""What the platform team says of pods reaches them: images, overlays, Redis."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from operator_objects import PLATFORM, Json, by_key, entry, gpu_pool, model_pool, observed

from aegaeon_gateway.config import load_config as read_gateway_config
from aegaeon_operator.config import from_environment
from aegaeon_operator.errors import SettingsError
from aegaeon_operator.kube.controller import read_files
from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, EngineFacts, ModelFacts, SchedulerFacts
from aegaeon_operator.reconcile.cluster.platform import Platform, RedisAt
from aegaeon_operator.reconcile.cluster.report import reports

MODELS = model_pool("red", "llama", gateway={"parentRefs": [{"name": "public"}]})


def made(
    *, platform: Platform = PLATFORM, redis: dict[str, str] | None = None, failover: bool = False, **spec: Any
) -> dict[ChildKey, Json]:
    seen = observed(gpu_pool(**spec), MODELS, platform=platform, redis=redis or {}, failover=failover)
    return by_key(desired(seen).manifests)


def pod(of: dict[ChildKey, Json], name: str) -> Json:
    (found,) = (one for key, one in of.items() if key.kind in ("Deployment", "StatefulSet") and key.name == name)
    template: Json = found["spec"]["template"]
    return template


def test_images_of_the_pool_take_the_place_of_the_operators() -> None:
    images = {"engine": "registry/engine:2", "pullPolicy": "Always", "pullSecrets": ["registry"]}
    found = made(images=images)
    engine, gateway = (pod(found, f"pool-{name}")["spec"] for name in ("engine", "gateway"))
    assert [one["image"] for one in engine["initContainers"] + engine["containers"]] == ["registry/engine:2"] * 2
    assert gateway["containers"][0]["image"] == PLATFORM.control_image
    assert gateway["containers"][0]["imagePullPolicy"] == "Always"
    assert engine["imagePullSecrets"] == gateway["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize(("backend", "image"), [("torch", PLATFORM.engine_image), ("vllm", PLATFORM.vllm_image)])
def test_the_backend_chooses_the_image_of_engines_unless_the_pool_names_one(backend: str, image: str) -> None:
    chosen, named = (
        pod(made(backend=backend, images=images), "pool-engine")["spec"]["containers"][0]["image"]
        for images in ({}, {"engine": "registry/engine:2"})
    )
    assert (chosen, named) == (image, "registry/engine:2")


def test_an_upgrade_spreads_control_pods_anew_and_leaves_engines_where_their_cache_is() -> None:
    found = made(gateway={"endpointPicker": {}})
    keys = {
        name: pod(found, f"pool-{name}")["spec"]["topologySpreadConstraints"][0].get("matchLabelKeys")
        for name in ("gateway", "picker", "engine")
    }
    assert keys == {"gateway": ["pod-template-hash"], "picker": ["pod-template-hash"], "engine": None}


def test_an_engine_asks_for_as_many_accelerators_as_share_its_models() -> None:
    accelerator = {"device": "cuda:0", "resourceName": "nvidia.com/gpu", "count": 4}
    found = made(accelerator=accelerator, podTemplate={"resources": {"requests": {"cpu": 2}}})
    (engine,) = pod(found, "pool-engine")["spec"]["containers"]
    assert engine["resources"]["requests"] == {"cpu": "2", "nvidia.com/gpu": "4"}
    assert engine["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    config = next(one for key, one in found.items() if key.kind == "Secret" and key.name == "pool-config")
    settings = json.loads(entry(config, "engine.json"))
    assert (settings["device"], settings["ranks"]) == ("cuda:0", 4)


def test_gpus_are_counted_by_accelerator_and_a_large_model_would_need_several_of_its_own() -> None:
    accelerator = {"resourceName": "nvidia.com/gpu", "count": 2}
    seen = observed(gpu_pool(accelerator=accelerator, engines={"replicas": 3}), MODELS)
    facts = SchedulerFacts("1", models={"llama": ModelFacts(weight_bytes=12 << 20)})  # on each of two, which have 13 Mi
    (status,) = [
        one.status for one in reports(replace(seen, scheduler=facts), desired(seen), {}) if "gpus" in one.status
    ]
    assert status["gpus"] == {"used": 6, "dedicated": 2}


def test_each_overlay_reaches_its_own_pods_and_never_the_labels_that_select_them() -> None:
    overlay = {"labels": {"team": "ml", "app.kubernetes.io/component": "x"}, "priorityClassName": "high"}
    control = {"tolerations": [{"key": "infra", "operator": "Exists"}], "resources": {"requests": {"cpu": 2}}}
    found = made(podTemplate=overlay, controlPodTemplate=control, gateway={"endpointPicker": {}})
    engine = pod(found, "pool-engine")
    assert engine["metadata"]["labels"]["app.kubernetes.io/component"] == "engine"
    assert (engine["metadata"]["labels"]["team"], engine["spec"]["priorityClassName"]) == ("ml", "high")
    for name in ("scheduler", "gateway", "picker"):
        spec = pod(found, f"pool-{name}")["spec"]
        assert [one for one in spec["tolerations"] if one["key"] == "infra"] == control["tolerations"]
        assert spec["containers"][0]["resources"]["requests"]["cpu"] == "2"
        assert "priorityClassName" not in spec


def lost(template: Json) -> dict[str, int]:
    """Seconds that a pod stays on a node with each of the taints of one that is lost."""
    return {
        one["key"]: one["tolerationSeconds"] for one in template["spec"]["tolerations"] if "tolerationSeconds" in one
    }


def test_pods_leave_a_lost_node_within_seconds_unless_their_overlay_says_otherwise() -> None:
    found = made(gateway={"endpointPicker": {}}, scheduling={"standby": True})
    taints = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    for name in ("scheduler", "standby", "gateway", "picker"):
        assert lost(pod(found, f"pool-{name}")) == dict.fromkeys(taints, 2)
    assert lost(pod(found, "pool-engine")) == dict.fromkeys(taints, 60)
    own = {"key": taints[1], "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    changed = made(controlPodTemplate={"tolerations": [own]}, podTemplate={"tolerations": [{"operator": "Exists"}]})
    assert lost(pod(changed, "pool-gateway")) == {taints[0]: 2, taints[1]: 300}
    assert lost(pod(changed, "pool-engine")) == {}, "it stays in any case"


def test_a_standby_is_a_second_scheduler_whose_address_is_in_every_configuration() -> None:
    found = made(scheduling={"standby": True})
    config = next(one for key, one in found.items() if key.kind == "Secret" and key.name == "pool-config")
    files = {name: json.loads(entry(config, f"{name}.json")) for name in ("scheduler", "gateway", "engine")}
    lease = files["scheduler"]["lease"]
    assert (lease["namespace"], lease["name"], lease["owner"]["kind"]) == ("infra", "pool-scheduler", "GpuPool")
    for name in ("gateway", "engine"):
        targets = (files[name]["scheduler"], files[name]["standbys"])
        assert targets == ("pool-scheduler.infra.svc:7000", ["pool-standby.infra.svc:7000"])
    kinds = {key.kind for key in found if key.name == "pool-standby"}
    assert kinds == {"Deployment", "Service", "NetworkPolicy"}
    for name, other in (("scheduler", "standby"), ("standby", "scheduler")):
        spec = pod(found, f"pool-{name}")["spec"]
        assert spec["containers"][0]["command"][-3:] == [f"/etc/aegaeon/config/{name}.json", "--holder", "$(POD_NAME)"]
        (config_of,) = (one["projected"]["sources"] for one in spec["volumes"] if one["name"] == "config")
        own = config_of[0]["secret"]["items"]
        assert own == [{"key": "scheduler.json", "path": f"{name}.json"}], "names in the Lease alone differ"
        (apart,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        labels = apart["podAffinityTerm"]["labelSelector"]["matchLabels"]
        assert labels["app.kubernetes.io/component"] == other


def test_a_pool_without_a_standby_has_no_pod_of_it_but_knows_its_address_for_while_the_first_is_silent() -> None:
    without, silent, asked = made(), made(failover=True), made(scheduling={"standby": True})
    deployments = [ChildKey("Deployment", "infra", f"pool-{name}") for name in ("scheduler", "standby")]
    replicas = [[one[key]["spec"]["replicas"] for key in deployments] for one in (without, silent, asked)]
    assert replicas == [[1, 0], [1, 1], [1, 1]]
    for found in (without, silent):
        assert [pod(found, f"pool-{name}") for name in ("gateway", "engine")] == [
            pod(asked, f"pool-{name}") for name in ("gateway", "engine")
        ], "no pod is replaced when a standby comes or goes"


def test_schedulers_and_pickers_alone_may_ask_the_api_server_and_only_by_the_roles_made_for_them() -> None:
    platform = replace(PLATFORM, picker_role="Role/the-role", scheduler_role="ClusterRole/leases")
    found = made(gateway={"endpointPicker": {}}, platform=platform)
    accounts = {
        name: (spec.get("serviceAccountName"), spec["automountServiceAccountToken"])
        for name in ("scheduler", "gateway", "engine", "picker")
        for spec in [pod(found, f"pool-{name}")["spec"]]
    }
    assert accounts.pop("picker") == ("pool-picker", True)
    assert accounts.pop("scheduler") == ("pool-scheduler", True)
    bound = found[ChildKey("RoleBinding", "infra", "pool-scheduler")]
    assert (bound["roleRef"]["kind"], bound["roleRef"]["name"]) == ("ClusterRole", "leases")
    assert set(accounts.values()) == {(None, False)}
    bound = found[ChildKey("RoleBinding", "infra", "pool-picker")]
    assert (bound["roleRef"]["kind"], bound["roleRef"]["name"]) == ("Role", "the-role")
    assert bound["subjects"] == [{"kind": "ServiceAccount", "name": "pool-picker", "namespace": "infra"}]


LEADS = SchedulerFacts("1", term=7, engines=(EngineFacts("pool-engine-0", "unified", True, 0, 0.0),))


def status_of(
    *children: Any, scheduler: SchedulerFacts | None = LEADS, **spec: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a pool with one of each, whose children are such: its status, and its conditions by type."""
    seen = observed(gpu_pool(**{"engines": {"replicas": 1}, "gateway": {"replicas": 1}} | spec), MODELS, *children)
    unreachable = "" if scheduler else "no scheduler leads"
    found = reports(replace(seen, scheduler=scheduler, unreachable=unreachable), desired(seen), {})
    (report,) = (one for one in found if one.about.kind == "GpuPool")
    return report.status, {one["type"]: one for one in report.status["conditions"]}


def test_a_scheduler_is_ready_while_a_leader_answers_regardless_of_kubelets() -> None:
    _, silent = status_of(*running(), scheduler=None)
    found = silent["SchedulerReady"]
    assert (found["status"], found["reason"]) == ("False", "SchedulerNotAnswering")
    assert silent["Ready"]["status"] == "False"
    _, alone = status_of(*running(), scheduling={"standby": True})
    assert (alone["SchedulerReady"]["status"], alone["SchedulerReady"]["reason"]) == ("True", "SomeReady")
    assert alone["SchedulerReady"]["message"].startswith("0 of 1 standby pods are ready")
    assert alone["Ready"]["status"] == "True"
    assert alone["Progressing"]["status"] == "True", "until the other one is there"


def running(replicas: int = 1, generation: int = 1, **status: Any) -> list[dict[str, Any]]:
    """Scheduler, gateways and engines with one ready pod each, as of generation 1."""
    of_all = {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas}
    of_all |= {"currentRevision": "a", "updateRevision": "a", **status}
    found = made(engines={"replicas": 1}, gateway={"replicas": 1})
    workloads = [
        one for one in found.values() if one["kind"] in ("Deployment", "StatefulSet") and one["spec"]["replicas"]
    ]
    return [{**one, "metadata": {**one["metadata"], "generation": generation}, "status": of_all} for one in workloads]


def test_a_pool_whose_spec_was_just_edited_keeps_serving_and_reports_the_rollout() -> None:
    _, before = status_of(*running())
    assert (before["Ready"]["status"], before["Progressing"]["reason"]) == ("True", "Stable")
    for rolling in ({"generation": 2}, {"updatedReplicas": 0, "updateRevision": "b"}):
        _, after = status_of(*running(**rolling))
        assert (after["Ready"]["status"], after["Progressing"]["reason"]) == ("True", "RollingOut")
        assert "pool-engine, pool-gateway, pool-scheduler" in after["Progressing"]["message"]


def test_replicas_counts_existing_pods() -> None:
    assert status_of()[0]["replicas"] == 0
    assert status_of(*running(replicas=3))[0]["replicas"] == 3


def test_a_limit_below_the_default_request_lowers_the_request() -> None:
    small = {"resources": {"limits": {"memory": "128Mi"}}}
    (container,) = pod(made(controlPodTemplate=small), "pool-scheduler")["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "100m"}, "limits": {"memory": "128Mi"}}


def test_only_gateways_are_configured_with_redis_and_can_parse_it(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("pass-word", "utf-8")
    (tmp_path / "ca").write_text("PEM", "utf-8")
    at = RedisAt("rediss://redis.system.svc:6379/0", tmp_path / "password", tmp_path / "ca")
    found = made(platform=replace(PLATFORM, redis=at), redis=read_files(at))
    mounts = {
        name: [one["mountPath"] for one in pod(found, f"pool-{name}")["spec"]["containers"][0]["volumeMounts"]]
        for name in ("scheduler", "gateway", "engine")
    }
    assert [name for name, paths in mounts.items() if "/etc/aegaeon/redis" in paths] == ["gateway"]
    assert entry(found[ChildKey("Secret", "infra", "pool-redis")], "password") == "pass-word"
    file = tmp_path / "gateway.json"
    file.write_text(entry(found[ChildKey("Secret", "infra", "pool-config")], "gateway.json"), "utf-8")
    config = read_gateway_config(file)
    assert (config.redis, config.redis_password_file) == (at.url, "/etc/aegaeon/redis/password")
    assert config.redis_ca_file == "/etc/aegaeon/redis/ca.crt"
    assert "pass-word" not in file.read_text("utf-8")


def test_a_redis_without_password_needs_no_secret() -> None:
    found = made(platform=replace(PLATFORM, redis=RedisAt("redis://redis:6379")))
    assert ChildKey("Secret", "infra", "pool-redis") not in found


def test_a_missing_redis_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"password: cannot be read"):
        read_files(RedisAt("redis://redis:6379", tmp_path / "password"))


def test_proxies_that_a_pool_trusts_reach_its_gateways(tmp_path: Path) -> None:
    found = made(gateway={"trustedProxies": ["10.128.0.0/14", "fd00::/8"]})
    file = tmp_path / "gateway.json"
    file.write_text(entry(found[ChildKey("Secret", "infra", "pool-config")], "gateway.json"), "utf-8")
    assert read_gateway_config(file).http.trusted_proxies == ("10.128.0.0/14", "fd00::/8")


def listeners(made: Iterable[Json]) -> Iterator[str]:
    """Where the pools' processes listen, but for the loopback interface, in their files and arguments."""
    for one in made:
        if one["kind"] == "Secret" and one["metadata"]["name"] == "pool-config":
            for text in one["data"].values():
                config = json.loads(base64.b64decode(text))
                yield from (str(value) for name, value in config.items() if name == "sink" or name.endswith("listen"))
        if one["kind"] in ("Deployment", "StatefulSet"):
            for container in one["spec"]["template"]["spec"]["containers"]:
                pairs = pairwise(container["command"])
                yield from (value for name, value in pairs if name == "--sink" or name.endswith("listen"))


@pytest.mark.parametrize(
    ("host", "anywhere", "pod"), [("10.96.0.1", "0.0.0.0", "$(POD_IP)"), ("fd00::1", "[::]", "[$(POD_IP)]")]
)
def test_servers_listen_in_the_family_of_the_cluster(host: str, anywhere: str, pod: str) -> None:
    platform = from_environment({"KUBERNETES_SERVICE_HOST": host}).platform
    pool = gpu_pool(gateway={"endpointPicker": {"replicas": 1}})
    found = {one.rpartition(":")[0] for one in listeners(desired(observed(pool, platform=platform)).manifests)}
    assert found - {"127.0.0.1"} == {anywhere, pod}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        (
            {"limits": {"cpu": "2", "memory": "1Gi", "example.com/nic": "1"}, "requests": {"cpu": "1"}},
            {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}},
        ),
    ],
)
def test_the_hand_over_has_the_engines_cpu_and_memory_for_a_quota(given: Json, expected: Json | None) -> None:
    wanted = desired(observed(gpu_pool(podTemplate={"resources": given})))
    (engine,) = (one for one in wanted.manifests if one["kind"] == "StatefulSet")
    (hand_over,) = engine["spec"]["template"]["spec"]["initContainers"]
    assert hand_over.get("resources") == expected


def test_on_a_platform_that_gives_users_no_pod_names_one() -> None:
    """OpenShift's restricted-v2 refuses every other user and group than the namespace's own, and root."""
    platform = from_environment({"AEGAEON_SECURITY_CONTEXT": "platform"}).platform
    pool = gpu_pool(gateway={"endpointPicker": {"replicas": 1}})
    made = desired(observed(pool, platform=platform)).manifests
    pods = [one["spec"]["template"]["spec"] for one in made if one["kind"] in ("Deployment", "StatefulSet")]
    assert len(pods) == 5
    assert not any(word in json.dumps(pods) for word in ("runAsUser", "runAsGroup", "fsGroup", "initContainers"))
    with pytest.raises(SettingsError, match="must be fixed or platform"):
        from_environment({"AEGAEON_SECURITY_CONTEXT": "root"})


def test_engines_and_gateways_run_as_the_accounts_that_a_cloud_knows() -> None:
    accounts = {"engines": "reader", "gateway": "talker"}
    found = made(serviceAccounts=accounts)
    for name, account in (("pool-engine", "reader"), ("pool-gateway", "talker"), ("pool-scheduler", "pool-scheduler")):
        spec = pod(found, name)["spec"]
        assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == (
            account,
            account not in accounts.values(),
        )
