"""What a GpuPool lays over its pods reaches them; what is the operator's own is refused with a sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from operator_objects import MEMORY, PLATFORM, Json, by_key, gpu_pool, model_pool, observed
from pydantic import ValidationError

from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.names import SCHEDULER_STATUS
from aegaeon_operator.reconcile.cluster.platform import RedisAt
from aegaeon_operator.spec.explain import explain
from aegaeon_operator.spec.pods import reserved
from aegaeon_operator.spec.resources import GpuPool

SPLIT = {"engines": {"replicas": 1}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}}
ALL: dict[str, Any] = {
    **SPLIT,
    "scheduling": {"standby": True},
    "gateway": {"endpointPicker": {}},
    "memory": MEMORY | {"disk": {"path": "/cache"}},
    "egress": {
        "httpsProxy": "http://proxy.example",
        "credentialsSecretRef": {"name": "proxy", "key": "user"},
        "caConfigMapRef": {"name": "ca", "key": "ca.crt"},
    },
}
CLAIM, BUCKET = {"claim": "night"}, {"s3": {"bucket": "night", "credentialsSecretRef": {"name": "s3", "key": "k"}}}
RUN = {"matchLabels": {"app": "store"}}


def workloads(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Json]:
    """Deployments and StatefulSets by component."""
    pool = gpu_pool(**spec)
    pool["metadata"]["labels"] = labels or {}
    found = by_key(desired(observed(pool, model_pool("red", "llama"))).manifests)
    those = [one for key, one in found.items() if key.kind in ("Deployment", "StatefulSet")]
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one for one in those}


def pods(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Json]:
    """Templates by component."""
    return {component: one["spec"]["template"] for component, one in workloads(labels, **spec).items()}


def own(template: Json) -> Json:
    first: Json = template["spec"]["containers"][0]
    return first


def problems(**spec: Any) -> list[str]:
    """The sentences of `aegaeon up`."""
    body = gpu_pool(**spec)
    body["metadata"] = {"name": "pool"}
    try:
        GpuPool.model_validate_json(json.dumps(body))
    except ValidationError as error:
        return explain(error, GpuPool)
    return []


def test_a_template_that_says_nothing_changes_no_pod() -> None:
    assert pods(**ALL) == pods(**ALL, podTemplate={}, controlPodTemplate={"containers": [], "resources": {}})


@pytest.mark.parametrize(("of", "components"), [("podTemplate", ("engine",)), ("controlPodTemplate", ("gateway",))])
def test_environment_volumes_and_containers_come_behind_the_pools_own(of: str, components: tuple[str, ...]) -> None:
    template = {
        "env": [{"name": "NCCL_DEBUG", "value": "WARN"}, secret_variable("TOKEN")],
        "volumes": [{"name": "drivers", "hostPath": {"path": "/home/nvidia"}}, {"name": "logs", "emptyDir": {}}],
        "volumeMounts": [{"name": "drivers", "mountPath": "/usr/local/nvidia", "readOnly": True}],
        "containers": [
            {"name": "shipper", "image": "logs:1", "volumeMounts": [{"name": "logs", "mountPath": "/logs"}]}
        ],
        "initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
    }
    before, after = pods(**ALL), pods(**{**ALL, of: template})
    changed = {name for name in before if before[name] != after[name]}
    assert set(components) <= changed
    for name in changed:
        had, has = before[name]["spec"], after[name]["spec"]
        assert own(after[name])["env"][len(own(before[name]).get("env", ())) :] == template["env"]
        mount = own(after[name])["volumeMounts"][-1]
        assert (mount["name"], mount["mountPath"], mount["readOnly"]) == ("drivers", "/usr/local/nvidia", True)
        assert [one["name"] for one in has["volumes"]] == [*(one["name"] for one in had["volumes"]), "drivers", "logs"]
        assert [one["name"] for one in has["containers"]] == [own(before[name])["name"], "shipper"]
        assert [one["name"] for one in has["initContainers"]] == [
            *(one["name"] for one in had.get("initContainers", ())),
            "proxy",
        ]
        assert has["initContainers"][-1]["restartPolicy"] == "Always"


def secret_variable(name: str) -> Json:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": "token", "key": "value", "optional": False}}}


def test_containers_beside_the_pools_own_are_confined_as_that_is() -> None:
    images = {"pullPolicy": "Never"}
    template = {"containers": [{"name": "a", "image": "a"}], "initContainers": [{"name": "b", "image": "b"}]}
    pod = pods(images=images, podTemplate=template)["engine"]["spec"]
    for one in (pod["containers"][1], pod["initContainers"][-1]):
        assert one["securityContext"] == own({"spec": pod})["securityContext"]
        assert one["imagePullPolicy"] == "Never"


def test_a_claim_of_devices_is_one_of_the_pod_and_of_the_engines_container() -> None:
    claims = {
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        "resources": {"requests": {"cpu": "2"}, "claims": [{"name": "gpu"}]},
    }
    assert problems(accelerator={"device": "cuda:0"}, podTemplate=claims) == []
    pod = pods(accelerator={"device": "cuda:0"}, podTemplate=claims)["engine"]
    assert pod["spec"]["resourceClaims"] == claims["resourceClaims"]
    assert own(pod)["resources"]["claims"] == [{"name": "gpu", "request": ""}]


def test_affinity_stands_beside_the_operators_own() -> None:
    term = {"topologyKey": "rack", "labelSelector": RUN}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]}]
            }
        },
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]
        },
    }
    before = pods(**ALL)
    after = pods(**ALL, podTemplate={"affinity": affinity}, controlPodTemplate={"affinity": affinity})
    (beside,) = before["decode"]["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    decode = after["decode"]["spec"]["affinity"]
    kept, more = decode["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert kept == beside
    assert (more["topologyKey"], more["labelSelector"]["matchLabels"]) == ("rack", {"app": "store"})
    (node,) = decode["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert node["matchExpressions"][0]["values"] == ["h100"]
    apart = after["scheduler"]["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [one["weight"] for one in apart] == [100, 1]


def test_a_spread_counts_the_components_pods_and_replaces_the_operators_of_the_same_key() -> None:
    def spread(*keys: str) -> Any:
        given = [{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"} for key in keys]
        return pods(podTemplate={"topologySpreadConstraints": given})["engine"]["spec"]["topologySpreadConstraints"]

    (own_one,), (first, zone), (host,) = (
        spread(),
        spread("topology.kubernetes.io/zone"),
        spread("kubernetes.io/hostname"),
    )
    assert first == own_one
    assert zone["labelSelector"] == host["labelSelector"] == own_one["labelSelector"]
    assert (own_one["whenUnsatisfiable"], host["whenUnsatisfiable"]) == ("ScheduleAnyway", "DoNotSchedule")


def test_the_lists_of_what_is_owned_are_those_of_the_pods() -> None:
    """Fails for a container, volume, port, variable or folder that is new: add it to spec/pods/reserved.py."""
    redis = replace(PLATFORM, redis=RedisAt("redis://redis", ca_file=Path("ca.crt")))
    made: list[Json] = []
    for batches in (CLAIM, BUCKET):
        seen = observed(gpu_pool(**ALL, batches=batches), model_pool("red", "llama"), platform=redis, redis={"a": "b"})
        whole = desired(seen).manifests
        made += [one["spec"]["template"]["spec"] for one in whole if "template" in one.get("spec", {})]
    containers = [one for pod in made for one in (*pod["containers"], *pod.get("initContainers", ()))]
    assert {one["name"] for one in containers} == set(reserved.CONTAINERS)
    assert {one["name"] for pod in made for one in pod["volumes"]} == set(reserved.VOLUMES)
    declared = {port["containerPort"] for one in containers for port in one.get("ports", ())}
    assert declared | {SCHEDULER_STATUS} == set(reserved.PORTS)  # that one is reached by a port-forward alone
    assert {env["name"] for one in containers for env in one.get("env", ())} == set(reserved.VARIABLES)
    folders = {PurePosixPath(one["mountPath"]) for of in containers for one in of["volumeMounts"]}
    of_the_pool = {PurePosixPath("/srv/models"), PurePosixPath("/cache")}
    assert [one for one in folders - of_the_pool if not any(map(one.is_relative_to, reserved.FOLDERS))] == []


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
REFUSED: list[tuple[Json, str]] = [
    ({"containers": [{"name": "engine", "image": "a"}]}, "containers and initContainers: engine"),
    ({"initContainers": [{"name": "hand-over", "image": "a"}]}, "are reserved; choose other names"),
    (
        {"containers": [{"name": "a", "image": "a"}], "initContainers": [{"name": "a", "image": "a"}]},
        "must have different names",
    ),
    ({"containers": [{"name": "a", "image": "a"}] * 2}, "duplicate name 'a'"),
    ({"volumes": [{"name": "tls", "emptyDir": {}}]}, "volumes: config, tls"),
    ({"env": [{"name": "POD_NAME", "value": "x"}]}, "env: POD_NAME"),
    ({"env": [{"name": "A"}]}, "set exactly one of value, valueFrom"),
    ({"env": [{"name": "A=B", "value": ""}]}, "without a digit first"),
    ({"volumeMounts": [{"name": "config", "mountPath": "/c"}]}, "must name volumes of the same template"),
    ({"containers": [{"name": "a", "image": "a", "ports": [{"containerPort": 7101}]}]}, "must be none of 7000"),
    ({"resources": {"claims": [{"name": "gpu"}]}}, "must name resourceClaims of the same template"),
    ({"resourceClaims": [{"name": "gpu"}]}, "set exactly one of resourceClaimName, resourceClaimTemplateName"),
    ({"volumes": [{"name": "a"}]}, "set exactly one of emptyDir"),
    *(
        (
            {"initContainers": [{"name": "a", "image": "a", probe: {"tcpSocket": {"port": 1}}}]},
            "need restartPolicy: Always",
        )
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    ),
    ({"tolerations": [{"value": "a"}]}, "needs operator: Exists"),
    ({"tolerations": [{"key": "", "operator": "Equal"}]}, "needs operator: Exists"),
    ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "value is not allowed"),
    *(
        (
            {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 1, **effect}]},
            "needs effect: NoExecute",
        )
        for effect in ({}, {"effect": "NoSchedule"})
    ),
    *(
        (
            {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [one]}]}}}},
            "Gt and Lt take",
        )
        for one in (
            {"key": "a", "operator": "In"},
            {"key": "a", "operator": "Exists", "values": ["b"]},
            {"key": "a", "operator": "Gt", "values": ["1", "2"]},
        )
    ),
    (
        {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}
            ]
        },
        "minDomains needs",
    ),
    ({"resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": 1}}}, "must not exceed limits"),
    (
        {"containers": [{"name": "a", "image": "a", "resources": {"requests": {"m": "1Gi"}, "limits": {"m": "1G"}}}]},
        "must not exceed limits",
    ),
    *(
        ({name: {"a": value}}, "the value of a label")
        for name in ("labels", "nodeSelector")
        for value in ("a b", "ä", "-")
    ),
    ({"securityContext": {"privileged": True}}, "emplate.securityContext: is set by the operator"),
    (
        {"containers": [{"name": "a", "image": "a", "securityContext": {}}]},
        "containers[0].securityContext: is set by the operator",
    ),
    ({"hostNetwork": True}, "is set by the operator"),
    *(
        (
            {"volumes": [{"name": "a", "emptyDir": {}}], "volumeMounts": [{"name": "a", "mountPath": path}]},
            "must not overlap with",
        )
        for path in ("/etc", "/etc/aegaeon/tls", "/dev/shm", "/tmp/x", "/a/../tmp", "/srv/models", "/srv", "/cache/x")
    ),
]


@pytest.mark.parametrize(("template", "said"), REFUSED)
@pytest.mark.parametrize("of", ["podTemplate", "controlPodTemplate"])
def test_what_is_the_operators_own_is_refused_with_a_sentence(of: str, template: Json, said: str) -> None:
    (sentence,) = problems(**{of: template}, memory=MEMORY | {"disk": {"path": "/cache"}})
    assert said in sentence


def test_all_that_does_not_fit_is_reported_at_once() -> None:
    template = {"env": [{"name": "POD_IP", "value": ""}], "resources": {"claims": [{"name": "gpu"}]}}
    memory = {"deviceBytes": "1Ki", "slabSize": "4Ki", "hostModelCache": 0, "hostKv": "1Ki"}
    sentences = problems(podTemplate=template, memory=memory)
    assert len(sentences) == 2
    assert all(said in sentences[0] for said in ("deviceBytes 1Ki", "hostKv 1Ki", "hostModelCache must be more than 0"))
    assert all(said in sentences[1] for said in ("env: POD_NAME", "resources.claims"))
    both = problems(
        prefill={"replicas": 1}, adapters={"memory": "1Mi"}, memory=MEMORY | {"hostKv": "256Ki"}
    ) + problems(accelerator={"count": 2}, memory=MEMORY | {"hostKv": "256Ki"}, adapters={"memory": "1Mi"})
    assert "prefill needs decode" in both[0]
    assert "adapters need backend vllm" in both[0]
    assert "adapters need backend vllm" in both[1]
    assert "is less than one slab of 256Ki for each of 2" in both[1]


def test_a_queue_of_kueue_is_that_of_the_engines_alone() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/priority-class": "serving", "team": "red"}
    found = pods(labels, **ALL)
    queued = {name for name, one in found.items() if one["metadata"]["labels"].get("kueue.x-k8s.io/queue-name")}
    assert queued == {"engine", "prefill", "decode"}
    assert found["engine"]["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "serving"
    assert "team" not in found["engine"]["metadata"]["labels"]
    assert all("kueue" not in label for one in pods(**ALL).values() for label in one["metadata"]["labels"])
    # Kueue admits what has them, and refuses to scale a StatefulSet that it admitted.
    assert all("kueue" not in label for one in workloads(labels, **ALL).values() for label in one["metadata"]["labels"])
    own_label = pods(labels, podTemplate={"labels": {"kueue.x-k8s.io/queue-name": "other"}})["engine"]
    assert own_label["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "other"
