"""Every text in the manifests that could name a path, a URL, a Secret or another object, its rule, and hostile values.

A field that is new in the types fails here until it is decided what it may name, and writes the rule beside it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from enum import Enum

import pytest
from operator_objects import KEY, MEMORY, Json, by_key, gpu_pool, model_pool, observed

from aegaeon_operator.kube.gather import named_secrets
from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.report import reports
from aegaeon_operator.spec.crd import definitions


class Rule(Enum):
    """What a text may name in a cluster. The first four are tenants' (ModelPools), the fifth the platform's."""

    MACHINE = "a file of a machine: refused in a cluster, by the API server and by the operator"
    MODELS = "a folder inside the GpuPool's volumes.models.path; engines and gateways follow links no further"
    URL = "http or https; which addresses, the GpuPool's allowedSources decides when dialling"
    SECRET = "a Secret, or an entry of one, in the object's own namespace"
    PLATFORM = "a path of nodes and pods, by the operator of the GpuPool's hardware; outside the pods' own folders"
    SERVER = "hosts and networks that sources may be at, by the platform; what is dialled is held to them"
    NETWORK = "addresses of peers: a valid network"
    OBJECT = "an object of Kubernetes by its name alone; across namespaces the other side must allow it"
    REMOTE = "something on the source's own server: never a file here"
    WORD = "nothing outside the object"


_SELECTOR = {"matchLabels{}": Rule.WORD, "matchExpressions[].key": Rule.WORD, "matchExpressions[].values[]": Rule.WORD}


def below(path: str, rules: dict[str, Rule]) -> dict[str, Rule]:
    return {f"{path}.{name}": rule for name, rule in rules.items()}


_NODES = {f"{of}[].{name}": Rule.WORD for of in ("matchExpressions", "matchFields") for name in ("key", "values[]")}
_PODS = {
    "topologyKey": Rule.WORD,
    **below("labelSelector", _SELECTOR),
    "namespaces[]": Rule.OBJECT,
    **below("namespaceSelector", _SELECTOR),
    "matchLabelKeys[]": Rule.WORD,
    "mismatchLabelKeys[]": Rule.WORD,
}
_WHEN = ("requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution")
_AFFINITY = {
    **below(f"nodeAffinity.{_WHEN[0]}.nodeSelectorTerms[]", _NODES),
    **below(f"nodeAffinity.{_WHEN[1]}[].preference", _NODES),
    **{
        name: rule
        for kind in ("podAffinity", "podAntiAffinity")
        for name, rule in (
            below(f"{kind}.{_WHEN[0]}[]", _PODS) | below(f"{kind}.{_WHEN[1]}[].podAffinityTerm", _PODS)
        ).items()
    },
}
_ENV = {
    "name": Rule.WORD,
    "value": Rule.WORD,
    "valueFrom.fieldRef.fieldPath": Rule.WORD,
    "valueFrom.resourceFieldRef.resource": Rule.WORD,
    "valueFrom.resourceFieldRef.containerName": Rule.WORD,
    **{f"valueFrom.{of}.{part}": Rule.SECRET for of in ("secretKeyRef", "configMapKeyRef") for part in ("name", "key")},
}
_MOUNT = {"name": Rule.WORD, "mountPath": Rule.PLATFORM, "subPath": Rule.WORD}
_PROBE = {"httpGet.path": Rule.WORD, "grpc.service": Rule.WORD, "exec.command[]": Rule.WORD}
_CONTAINER = {
    **dict.fromkeys(("name", "image", "command[]", "args[]", "workingDir", "ports[].name"), Rule.WORD),
    **below("env[]", _ENV),
    **below("volumeMounts[]", _MOUNT),
    **below("resources.claims[]", {"name": Rule.WORD, "request": Rule.WORD}),
    **{f"{of}Probe.{name}": rule for of in ("startup", "readiness", "liveness") for name, rule in _PROBE.items()},
}
_VOLUME = {
    "name": Rule.WORD,
    "hostPath.path": Rule.PLATFORM,
    "configMap.name": Rule.OBJECT,
    "secret.secretName": Rule.SECRET,
    **{f"{of}.items[].key": Rule.SECRET for of in ("configMap", "secret")},
    **{f"{of}.items[].path": Rule.WORD for of in ("configMap", "secret")},
    "persistentVolumeClaim.claimName": Rule.OBJECT,
    "csi.driver": Rule.OBJECT,
    "csi.fsType": Rule.WORD,
    "csi.volumeAttributes{}": Rule.WORD,
}
_POD = {
    "labels{}": Rule.WORD,
    "annotations{}": Rule.WORD,
    "nodeSelector{}": Rule.WORD,
    "tolerations[].key": Rule.WORD,
    "tolerations[].value": Rule.WORD,
    "priorityClassName": Rule.OBJECT,
    "runtimeClassName": Rule.OBJECT,
    **below("affinity", _AFFINITY),
    "topologySpreadConstraints[].topologyKey": Rule.WORD,
    "topologySpreadConstraints[].matchLabelKeys[]": Rule.WORD,
    **below("topologySpreadConstraints[].labelSelector", _SELECTOR),
    **below("env[]", _ENV),
    **below("volumeMounts[]", _MOUNT),
    **below("volumes[]", _VOLUME),
    **below("containers[]", _CONTAINER),
    **below("initContainers[]", _CONTAINER),
    **below("resources.claims[]", {"name": Rule.WORD, "request": Rule.WORD}),
    "resourceClaims[].name": Rule.WORD,
    "resourceClaims[].resourceClaimName": Rule.OBJECT,
    "resourceClaims[].resourceClaimTemplateName": Rule.OBJECT,
}
_SOURCE = "modelpools.models[].source"
_SOURCES = (_SOURCE, "modelpools.models[].adapters[].source")
_OF_SOURCE = {
    "hostPath": Rule.MODELS,
    "huggingFace.repository": Rule.REMOTE,
    "huggingFace.revision": Rule.REMOTE,
    "s3.bucket": Rule.REMOTE,
    "s3.prefix": Rule.REMOTE,
    "s3.endpoint": Rule.URL,
    "http.url": Rule.URL,
    **{f"{kind}.credentialsFile": Rule.MACHINE for kind in ("huggingFace", "s3", "http")},
    **{
        f"{kind}.credentialsSecretRef.{part}": Rule.SECRET
        for kind in ("huggingFace", "s3", "http")
        for part in ("name", "key")
    },
}
TABLE: dict[str, Rule] = {
    "gpupools.accelerator.device": Rule.WORD,
    "gpupools.accelerator.resourceName": Rule.WORD,
    "gpupools.memory.disk.path": Rule.PLATFORM,
    "gpupools.allowedNamespaces[]": Rule.OBJECT,
    "gpupools.allowedSources[]": Rule.SERVER,
    "gpupools.gateway.trustedProxies[]": Rule.NETWORK,
    "gpupools.gateway.corsOrigins[]": Rule.WORD,
    "gpupools.tracing.endpoint": Rule.URL,
    "gpupools.batches.folder": Rule.MACHINE,
    "gpupools.batches.claim": Rule.OBJECT,
    "gpupools.batches.s3.bucket": Rule.REMOTE,
    "gpupools.batches.s3.prefix": Rule.REMOTE,
    "gpupools.batches.s3.region": Rule.WORD,
    "gpupools.batches.s3.endpoint": Rule.URL,
    "gpupools.batches.s3.credentialsFile": Rule.MACHINE,
    "gpupools.batches.s3.credentialsSecretRef.name": Rule.SECRET,
    "gpupools.batches.s3.credentialsSecretRef.key": Rule.SECRET,
    "gpupools.gateway.endpointPicker.service.name": Rule.OBJECT,
    "gpupools.gateway.endpointPicker.allowedFrom[].namespace": Rule.OBJECT,
    "gpupools.gateway.endpointPicker.allowedFrom[].podLabels{}": Rule.WORD,
    "gpupools.gateway.endpointPicker.allowedFrom[].cidr": Rule.NETWORK,
    "gpupools.images.control": Rule.WORD,
    "gpupools.images.engine": Rule.WORD,
    "gpupools.images.pullSecrets[]": Rule.SECRET,
    **{f"gpupools.{of}.{name}": rule for of in ("podTemplate", "controlPodTemplate") for name, rule in _POD.items()},
    "gpupools.volumes.models.path": Rule.PLATFORM,
    "gpupools.volumes.models.claim": Rule.OBJECT,
    "gpupools.volumes.sharedClaim": Rule.OBJECT,
    "modelpools.gpuPoolRef.name": Rule.OBJECT,
    "modelpools.gpuPoolRef.namespace": Rule.OBJECT,
    "modelpools.models[].name": Rule.WORD,
    "modelpools.models[].adapters[].name": Rule.WORD,
    **{f"{source}.{name}": rule for source in _SOURCES for name, rule in _OF_SOURCE.items()},
    "modelpools.tenants[].name": Rule.WORD,
    "modelpools.tenants[].keyFile": Rule.MACHINE,
    "modelpools.tenants[].keySecretRef.name": Rule.SECRET,
    "modelpools.tenants[].keySecretRef.key": Rule.SECRET,
    "modelpools.tenants[].models[]": Rule.WORD,
    "modelpools.gateway.parentRefs[].name": Rule.OBJECT,
    "modelpools.gateway.parentRefs[].namespace": Rule.OBJECT,
    "modelpools.gateway.parentRefs[].sectionName": Rule.OBJECT,
    "modelpools.gateway.hostnames[]": Rule.WORD,
    "modelpools.gateway.pathPrefix": Rule.WORD,
    "modelpools.gateway.header.name": Rule.WORD,
    "modelpools.gateway.header.value": Rule.WORD,
}

OTHERS = "/etc/aegaeon/credentials/blue.hub.token"
HOSTILE: dict[Rule, tuple[str, ...]] = {
    Rule.MACHINE: (
        OTHERS,
        "/etc/aegaeon/tls/tls.key",
        "/proc/self/environ",
        "/etc/aegaeon/config/engine.json",
        "/dev/mem",
    ),
    Rule.MODELS: (
        *("/etc/aegaeon/tls", OTHERS, "../../etc/aegaeon", "/srv/models/../../etc", "a/../../b", "..", "~", "~root/x"),
        *("/srv/models-of-others/a", "/", "//srv/models/a", "/srv", "/dev/shm/aegaeon", "a\0b", "a\nb", "./../x"),
    ),
    Rule.URL: (
        *("file:///etc/shadow", "ftp://host/x", "gopher://host:70/x", "//host/x", "host/x", "/etc/shadow", "data:,x"),
        *("HTTPS//x", "unix:///run/x", "s3://bucket/x", "\nhttp://host/x"),
    ),
    Rule.SECRET: ("blue/hub", "../hub", "hub/../../x", "blue:hub", "", "a b", "a\0", "a\n"),
    Rule.PLATFORM: ("relative", "../x", "", "~/x"),
    Rule.SERVER: (
        *(
            "",
            " ",
            "a b",
            "a\n",
            "ftp://host",
            "http://",
            "host/path",
            "user@host",
            "host:0",
            "host:65536",
            "ü.example",
        ),
        *("10.0.0.0/33", "999.1.1.1", "10.0.0.1/8", "[::1", "a..b", "*.*", "a.*", "http://host/", "x" * 301, "::/129"),
    ),
    Rule.NETWORK: ("", "10.0.0.0", "10.0.0.1/8", "999.1.1.1/8", "10.0.0.0/33", ":/1", "::/129", "a/8", "0.0.0.0/0 "),
    Rule.OBJECT: ("blue/pool", "../pool", "", "a b", "a\n", "UPPER", "a:b"),
}
# Of the platform's folders for models, beside what is no path: folders of the pods, and ways to them.
PODS_OWN = (
    "/etc",
    "/etc/aegaeon",
    "/etc/aegaeon/credentials",
    "/dev/shm",
    "/proc/1",
    "/srv/../etc",
    "/var",
    "/srv//a",
    "/srv/./a",
)
# Of the disk tier, which engines write to and a root container hands to their group.
NODES_OWN = (
    "/",
    "/etc",
    "/etc/aegaeon/tls",
    "/usr",
    "/usr/",
    "/var",
    "/var/",
    "/dev/shm/aegaeon",
    "/proc",
    "/a/../b",
    "/a:b",
)

SIBLINGS: dict[str, Json] = {
    "source": {},
    "adapters": {"name": "poet"},
    "huggingFace": {"repository": "org/one"},
    "s3": {"bucket": "models"},
    "http": {"url": "https://models.example/one"},
    "credentialsSecretRef": {"name": "hub", "key": "token"},
    "keySecretRef": {"name": "keys", "key": "red"},
    "header": {"name": "x-team", "value": "red"},
    "disk": {"path": "/cache"},
    "service": {"name": "picker"},
    "parentRefs": {"name": "public"},
    **{of: {"name": "beside", "image": "beside"} for of in ("containers", "initContainers")},
    "env": {"name": "A"},
    **{of: {"name": "hub", "key": "token"} for of in ("secretKeyRef", "configMapKeyRef")},
    "volumes": {"name": "a"},
    "volumeMounts": {"name": "a", "mountPath": "/a"},
    "configMap": {"name": "hub"},
    "secret": {"secretName": "hub"},
    "items": {"key": "a", "path": "a"},
    "csi": {"driver": "csi.example"},
    "resourceClaims": {"name": "gpu"},
    _WHEN[0]: {"topologyKey": "rack", "labelSelector": {}},
    _WHEN[1]: {"weight": 1},
    "podAffinityTerm": {"topologyKey": "rack", "labelSelector": {}},
}


def texts(schema: Json, path: str) -> Iterator[str]:
    """Paths of all texts below a schema that are no enumeration, amount or duration."""
    duration = "ns|us" in str(schema.get("x-kubernetes-validations", ""))
    if schema.get("type") == "string" and "enum" not in schema and not duration:
        yield path
    for name, inner in schema.get("properties", {}).items():
        yield from texts(inner, f"{path}.{name}")
    if "items" in schema:
        yield from texts(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from texts(schema["additionalProperties"], f"{path}{{}}")


def test_the_table_has_a_rule_for_every_text_of_both_kinds() -> None:
    """Fails for a field that is new: give it a rule above, and the code that holds it to the rule."""
    found = set()
    for plural, definition in definitions().items():
        (version,) = definition["spec"]["versions"]
        found |= set(texts(version["schema"]["openAPIV3Schema"]["properties"]["spec"], plural))
    assert found == TABLE.keys()


def test_every_rule_that_forbids_something_is_tried() -> None:
    assert HOSTILE.keys() | {Rule.WORD, Rule.REMOTE} == set(Rule)
    assert set(TABLE.values()) == set(Rule)


def objects(path: str, value: str) -> tuple[Json, Json]:
    """A GpuPool and a ModelPool that serve, but for `value` at `path`."""
    plural, *names = path.split(".")
    tenant = {"name": "red", "keySecretRef": {"name": "keys", "key": "red"}}
    pools = {
        "gpupools": gpu_pool(backend="vllm", adapters={"memory": "1Mi"}, memory=MEMORY | {"disk": {"path": "/cache"}}),
        "modelpools": model_pool("red", "one", tenants=[tenant], gateway={"parentRefs": [{"name": "public"}]}),
    }
    inner = pools[plural]["spec"]
    if "volumeMounts[]" in names:
        inner[names[0]] = {"volumes": [{"name": "a", "emptyDir": {}}]}
    for name in names[:-1]:
        inner = _into(inner, name)
    last = names[-1]
    if last.endswith("[]"):
        inner[last[:-2]] = [value]
    elif last.endswith("{}"):
        inner[last[:-2]] = {"key": value}
    else:
        inner[last] = value
    if last == "keyFile":
        del inner["keySecretRef"]
    return pools["gpupools"], pools["modelpools"]


def _into(inner: Json, name: str) -> Json:
    if name == "source":
        inner[name] = {}  # its fields exclude each other
    if name.endswith("[]"):
        items: list[Json] = inner.setdefault(name[:-2], [copy.deepcopy(SIBLINGS.get(name[:-2], {}))])
        return items[0]
    found: Json = inner.setdefault(name, copy.deepcopy(SIBLINGS.get(name, {})))
    return found


def accepted(gpu: Json, models: Json) -> tuple[bool, str, str]:
    """Whether both are accepted; every object created for them, and their scheduler's configuration."""
    secrets = {
        ("infra", "hub"): {"token": "hub-token"},
        ("infra", "keys"): {"red": "sk-red"},
        ("blue", "hub"): {"token": "secret-of-blue"},
        ("blue", "keys"): {"red": "secret-of-blue"},
    }
    seen = observed(gpu, models, secrets=secrets)
    wanted = desired(seen)
    conditions = [
        one for report in reports(seen, wanted, {}) for one in report.status["conditions"] if one["type"] == "Accepted"
    ]
    assert all(one["message"] for one in conditions if one["status"] != "True"), "a refusal without a sentence"
    made = json.dumps([by_key(wanted.manifests)[key] for key in sorted(by_key(wanted.manifests))])
    return all(one["status"] == "True" for one in conditions), made, json.dumps(wanted.catalog)


CASES = [(path, value) for path, rule in TABLE.items() for value in HOSTILE.get(rule, ())]


@pytest.mark.parametrize(("path", "value"), CASES)
def test_a_hostile_value_is_refused_with_a_sentence_and_reaches_nothing(path: str, value: str) -> None:
    good, made, catalog = accepted(*objects(path, value))
    assert not good, f"{path}: {value!r} was accepted"
    assert "secret-of-blue" not in made + catalog
    assert OTHERS not in made + catalog
    assert not value or json.dumps(value) not in catalog


@pytest.mark.parametrize("value", PODS_OWN)
def test_model_folders_neither_contain_nor_lie_in_the_pods_own_folders(value: str) -> None:
    assert not accepted(*objects("gpupools.volumes.models.path", value))[0]


@pytest.mark.parametrize(
    "value", [*NODES_OWN, "/a\0", "/a\n", "//a", "/srv/models", "/srv/models/", "/srv/models/x", "/srv", "/srv/"]
)
def test_the_disk_tier_is_separate_from_folders_of_pods_nodes_and_tenants(value: str) -> None:
    gpu, models = objects("gpupools.memory.disk.path", value)
    gpu["spec"]["volumes"] = {"models": {"path": "/srv/models"}}
    assert not accepted(gpu, models)[0]


@pytest.mark.parametrize("path", [path for path, rule in TABLE.items() if rule is Rule.SECRET])
def test_a_secret_of_the_same_name_in_another_namespace_is_never_read(path: str) -> None:
    value = {"name": "hub", "key": "token"}.get(path.rpartition(".")[2], "hub")
    seen = observed(*objects(path, value))
    assert {namespace for namespace, _ in named_secrets(seen)} == {KEY.namespace}


def test_namespaces_with_equal_secret_names_each_get_their_own() -> None:
    ref = {"name": "hub", "key": "token"}
    pools = [
        model_pool(
            name,
            namespace=name,
            models=[{"name": name, "source": {"huggingFace": {"repository": "org/m", "credentialsSecretRef": ref}}}],
        )
        for name in ("red", "blue")
    ]
    secrets = {(name, "hub"): {"token": f"secret-of-{name}"} for name in ("red", "blue")}
    found = desired(observed(gpu_pool(allowedNamespaces=["red", "blue"]), *pools, secrets=secrets))
    files = {entry["name"]: entry["source"]["hub"]["credentials_file"] for entry in found.catalog}
    assert files == {name: f"/etc/aegaeon/credentials/{name}.hub.token" for name in ("red", "blue")}


def test_default_values_serve() -> None:
    """The frame of the cases above: what they are refused for is the value alone."""
    for source in _SOURCES:
        assert accepted(*objects(f"{source}.hostPath", "one"))[0]
    for path, value in (
        (f"{_SOURCE}.http.url", "https://models.example/a"),
        (f"{_SOURCE}.s3.endpoint", "https://store.example"),
        (f"{_SOURCE}.huggingFace.credentialsSecretRef.name", "hub"),
        ("gpupools.volumes.models.path", "/srv/models"),
        ("gpupools.memory.disk.path", "/srv/models-of-others"),
        ("gpupools.memory.disk.path", "/srv/müll/"),
        ("gpupools.allowedSources[]", "*.example.com"),
        ("gpupools.gateway.trustedProxies[]", "fd00::/8"),
        ("gpupools.gateway.corsOrigins[]", "https://chat.example.com:8443"),
        ("gpupools.tracing.endpoint", "http://collector.observability:4317"),
        ("modelpools.gateway.hostnames[]", "models.example"),
        ("gpupools.podTemplate.volumes[].secret.secretName", "hub"),
        ("gpupools.podTemplate.volumes[].configMap.items[].key", "a.b"),
        ("gpupools.podTemplate.volumes[].persistentVolumeClaim.claimName", "claim"),
        ("gpupools.podTemplate.volumes[].csi.driver", "csi.example"),
        ("gpupools.podTemplate.volumes[].hostPath.path", "/dev/infiniband"),
        ("gpupools.podTemplate.volumeMounts[].mountPath", "/dev/infiniband"),
        ("gpupools.podTemplate.containers[].volumeMounts[].mountPath", "/etc/exporter"),
        ("gpupools.podTemplate.initContainers[].env[].valueFrom.secretKeyRef.name", "hub"),
        ("gpupools.controlPodTemplate.env[].valueFrom.configMapKeyRef.key", "a.b"),
        ("gpupools.podTemplate.resourceClaims[].resourceClaimTemplateName", "one-gpu"),
        (f"gpupools.podTemplate.affinity.podAffinity.{_WHEN[0]}[].namespaces[]", "stores"),
        (f"gpupools.podTemplate.affinity.podAntiAffinity.{_WHEN[1]}[].podAffinityTerm.namespaces[]", "stores"),
    ):
        assert accepted(*objects(path, value))[0], path
