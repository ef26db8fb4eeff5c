"""Values that a text must not have, by its rule, and objects with such a value in one place."""

from __future__ import annotations

import copy
import json

from operator_objects import MEMORY, Json, by_key, gpu_pool, model_pool, observed
from operator_text_rules import WHEN, Rule

from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.report import reports

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
    WHEN[0]: {"topologyKey": "rack", "labelSelector": {}},
    WHEN[1]: {"weight": 1},
    "podAffinityTerm": {"topologyKey": "rack", "labelSelector": {}},
}


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
