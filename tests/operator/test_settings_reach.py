"""Every setting of GpuPool makes a difference where it is used: the list of settings comes from the schema itself.

A setting that is accepted, documented and then dropped on its way to a process is the defect this looks for. The
configuration files are read with the processes' own readers, and the scheduler's as its core gets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from operator_objects import KEY, Json, by_key, entry, gpu_pool, model_pool, observed

from aegaeon_gateway.config import MOST_TOKENIZER_BYTES
from aegaeon_gateway.config import load_config as read_gateway_config
from aegaeon_operator.reconcile import LocalSettings, PodRole, reconcile
from aegaeon_operator.reconcile.cluster.desired import Desired, desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Observed
from aegaeon_operator.spec import Pool
from aegaeon_operator.spec.kubernetes import TOKENIZER_BYTES
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec, ModelPool
from aegaeon_scheduler.config import core_config
from aegaeon_scheduler.config import load_config as read_scheduler_config
from aegaeon_sidecar.config import read_config as read_sidecar_config

# What a setting needs around it to count.
SPLIT: Json = {"prefill": {"replicas": 1}, "decode": {"replicas": 1}}
SCALED: Json = {role: {"replicas": 1, "min": 1, "max": 4} for role in ("engines", "prefill", "decode")}
CUDA: Json = {"accelerator": {"device": "cuda:0", "resourceName": "nvidia.com/gpu"}}
DISK: Json = {"memory": {"disk": {"path": "/var/lib/models"}}}
PICKER: Json = {"gateway": {"endpointPicker": {}}}
PICKER_SERVICE: Json = {"gateway": {"endpointPicker": {"service": {"name": "theirs"}}}}
ADAPTERS: Json = {"backend": "vllm", "adapters": {"memory": "1Mi"}}
BUCKET: Json = {"batches": {"s3": {"bucket": "night", "credentialsSecretRef": {"name": "s3", "key": "keys"}}}}
PAPER: Json = {"scheduling": {"policy": "paper"}}
# On one machine alone (`aegaeon up`): a cluster has a port of its own for metrics.
LOCAL = {"scheduling.metricsPort", "batches.folder", "batches.s3.credentialsFile"}
GPU_NODE = {"key": "gpu", "operator": "Exists"}
STORES = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "store"}}}
TOLERATION = {"key": "gpu", "operator": "Exists"}
POD_TEMPLATE: dict[str, Any] = {
    "labels": {"team": "red"},
    "annotations": {"team": "red"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [TOLERATION],
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "resources.requests": {"cpu": "3"},
    "resources.limits": {"cpu": "3"},
    "resources.claims": [{"name": "gpu"}],
    "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
    "volumeMounts": [{"name": "logs", "mountPath": "/logs"}],
    "volumes": [{"name": "more", "emptyDir": {}}],
    "containers": [{"name": "exporter", "image": "exporter:1"}],
    "initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
    "resourceClaims": [{"name": "more", "resourceClaimName": "more"}],
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}],
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms": [
        {"matchExpressions": [GPU_NODE]}
    ],
    **{
        f"affinity.{kind}.{when}DuringSchedulingIgnoredDuringExecution": value
        for kind, when, value in (
            ("nodeAffinity", "preferred", [{"weight": 1, "preference": {"matchExpressions": [GPU_NODE]}}]),
            *(
                (kind, when, value)
                for kind in ("podAffinity", "podAntiAffinity")
                for when, value in (
                    ("preferred", [{"weight": 1, "podAffinityTerm": STORES}]),
                    ("required", [STORES]),
                )
            ),
        )
    },
}
# What mounts and claims name.
NAMED: Json = {
    "volumes": [{"name": "logs", "emptyDir": {}}],
    "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
}
AROUND: dict[str, Json] = {"resources.claims": NAMED, "volumeMounts": NAMED}
PICKER_LIMITS = ("connections", "connectionsPerAddress", "streams", "streamsPerConnection", "bufferedMib")

EGRESS: Json = {
    "egress": {
        "httpsProxy": "http://proxy.example",
        "credentialsSecretRef": {"name": "proxy", "key": "user"},
        "caConfigMapRef": {"name": "ca", "key": "ca.crt"},
    }
}

# By setting: another value, where it makes a difference, and what it needs around it.
SETTINGS: dict[str, tuple[Any, set[str], Json]] = {
    "backend": ("vllm", {"engine"}, {}),
    "accelerator.device": ("cuda:0", {"engine"}, {"accelerator": {"resourceName": "nvidia.com/gpu"}}),
    "accelerator.count": (2, {"engine", "manifests"}, CUDA),
    "accelerator.resourceName": ("amd.com/gpu", {"manifests"}, CUDA),
    "accelerator.dtype": ("bfloat16", {"engine"}, {}),
    "engines.replicas": (3, {"manifests"}, {}),
    "engines.min": (2, {"operator"}, SCALED),
    "engines.max": (5, {"operator"}, SCALED),
    "prefill.replicas": (2, {"manifests"}, SPLIT),
    "prefill.min": (2, {"operator"}, SCALED),
    "prefill.max": (5, {"operator"}, SCALED),
    "decode.replicas": (2, {"manifests"}, SPLIT),
    "decode.min": (2, {"operator"}, SCALED),
    "decode.max": (5, {"operator"}, SCALED),
    "memory.deviceBytes": ("14Mi", {"engine", "manifests"}, {}),
    "memory.outsideSlabs": ("3Gi", {"engine"}, {}),
    "memory.slabSize": ("512Ki", {"engine"}, {}),
    "memory.hostModelCache": ("33Mi", {"engine", "manifests"}, {}),
    "memory.hostKv": ("13Mi", {"engine", "manifests"}, {}),
    "memory.disk.path": ("/var/lib/others", {"engine", "manifests"}, DISK),
    "memory.disk.size": ("1Gi", {"engine"}, DISK),
    "memory.stage.chunk": ("1Mi", {"engine"}, {}),
    "memory.stage.depth": (7, {"engine"}, {}),
    "memory.prefixReuse": (False, {"engine"}, {}),
    "memory.prefixScope": ("pool", {"gateway"}, {}),
    "adapters.maxRank": (32, {"engine"}, ADAPTERS),
    "adapters.maxLoaded": (8, {"engine"}, ADAPTERS),
    "adapters.memory": ("2Mi", {"engine"}, ADAPTERS),
    "scheduling.policy": ("paper", {"core"}, {}),
    "scheduling.qMax": ("2s", {"core"}, PAPER),
    "scheduling.maxGroupSize": (5, {"core"}, PAPER),
    "scheduling.minStay": ("700ms", {"core"}, {}),
    "scheduling.quantumSteps": (12, {"core"}, {}),
    "scheduling.promptPart": ("50ms", {"core"}, {}),
    "scheduling.lateSlack": ("9s", {"core"}, {}),
    "scheduling.headroomPercent": (5.0, {"core"}, {}),
    "scheduling.warm": (True, {"core"}, {}),
    "scheduling.hold": ("11s", {"core", "gateway"}, {}),
    "scheduling.holdStart": ("70s", {"core"}, {}),
    "scheduling.admission": ("feasible", {"core"}, {}),
    "scheduling.kvGate": (85, {"core"}, {}),
    "scheduling.standby": (True, {"manifests"}, {}),
    "tuning.threads": (3, {"engine"}, {}),
    "tuning.maxBatch": (17, {"engine"}, {}),
    "tuning.maxGraphs": (7, {"engine"}, {}),
    "tuning.prefillChunkTokens": (2048, {"core", "engine"}, {}),
    "tuning.maxPooledTokens": (4096, {"core", "engine"}, {}),
    "tuning.lease": ("21s", {"engine"}, {}),
    "allowedNamespaces": (["green"], {"operator"}, {}),
    "allowedSources": (["huggingface.co"], {"engine", "gateway"}, {}),
    "egress.httpsProxy": ("http://proxy:3128", {"engine", "gateway", "scheduler"}, {}),
    "egress.httpProxy": ("http://proxy:3128", {"engine", "gateway", "scheduler"}, {}),
    "egress.noProxy": (["example.com"], {"engine", "gateway", "scheduler"}, EGRESS),
    "egress.credentialsSecretRef.name": ("other", {"manifests"}, EGRESS),
    "egress.credentialsSecretRef.key": ("other", {"manifests"}, EGRESS),
    "egress.caConfigMapRef.name": ("other", {"manifests"}, EGRESS),
    "egress.caConfigMapRef.key": ("other", {"manifests"}, EGRESS),
    "gateway.replicas": (5, {"manifests"}, {}),
    "gateway.endpointPicker.replicas": (3, {"manifests"}, PICKER),
    "gateway.endpointPicker.service.name": ("ours", {"manifests"}, PICKER_SERVICE),
    "gateway.endpointPicker.service.port": (9010, {"manifests"}, PICKER_SERVICE),
    "gateway.endpointPicker.failureMode": ("FailClose", {"manifests"}, PICKER),
    "gateway.endpointPicker.allowedFrom": ([{"cidr": "10.0.0.0/8"}], {"manifests"}, PICKER),
    **{f"gateway.endpointPicker.limits.{name}": (7, {"manifests"}, PICKER) for name in PICKER_LIMITS},
    "gateway.trustedProxies": (["10.0.0.0/8"], {"gateway"}, {}),
    "gateway.corsOrigins": (["https://chat.example.com"], {"gateway"}, {}),
    "gateway.accessLog": (True, {"gateway"}, {}),
    "gateway.strict": (True, {"gateway"}, {}),
    "gateway.tokenizerMemory": ("1Gi", {"gateway"}, {}),
    "serviceAccounts.engines": ("cloud", {"manifests"}, {}),
    "serviceAccounts.gateway": ("cloud", {"manifests"}, {}),
    "tracing.endpoint": ("http://collector:4317", {"gateway", "scheduler"}, {}),
    "batches.claim": ("night", {"gateway", "manifests"}, {}),
    "batches.s3.bucket": ("other", {"gateway"}, BUCKET),
    "batches.s3.prefix": ("other", {"gateway"}, BUCKET),
    "batches.s3.endpoint": ("https://store.example", {"gateway"}, BUCKET),
    "batches.s3.region": ("eu-central-1", {"gateway"}, BUCKET),
    "batches.s3.credentialsSecretRef.name": ("other", {"manifests"}, BUCKET),
    "batches.s3.credentialsSecretRef.key": ("other", {"manifests"}, BUCKET),
    "batches.keep": ("1h", {"gateway"}, BUCKET),
    "batches.tenantSize": ("1Gi", {"gateway"}, BUCKET),
    "batches.inFlight": (7, {"gateway"}, BUCKET),
    "tracing.percent": (25, {"gateway"}, {"tracing": {"endpoint": "http://collector:4317"}}),
    "images.control": ("registry/control:2", {"manifests"}, {}),
    "images.engine": ("registry/engine:2", {"manifests"}, {}),
    "images.pullPolicy": ("Always", {"manifests"}, {}),
    "images.pullSecrets": (["registry"], {"manifests"}, {}),
    **{
        f"{template}.{name}": (value, {"manifests"}, {template: AROUND.get(name, {})})
        for template in ("podTemplate", "controlPodTemplate")
        for name, value in POD_TEMPLATE.items()
    },
    "volumes.models.path": ("/srv/others", {"manifests"}, {}),
    "volumes.models.claim": ("models", {"manifests"}, {}),
    "volumes.sharedClaim": ("segments", {"manifests"}, {}),
    "autoscaling.queueWait": ("3s", {"operator"}, SCALED),
    "autoscaling.kvUsage": (50, {"operator"}, SCALED),
    "autoscaling.idle": ("99s", {"operator"}, SCALED),
}


def settings() -> Iterator[str]:
    """Paths of all settings, as a manifest has them."""
    schema = GpuPoolSpec.model_json_schema(by_alias=True)
    yield from _below(schema, schema["$defs"], ())


def _below(node: Json, definitions: Json, path: tuple[str, ...]) -> Iterator[str]:
    for one in (node, *node.get("anyOf", ())):
        if "$ref" in one:
            node = definitions[one["$ref"].rsplit("/", 1)[-1]]
    if "properties" not in node:
        yield ".".join(path)
    for name, child in node.get("properties", {}).items():
        yield from _below(child, definitions, (*path, name))


def merged(base: Json, changes: Json) -> Json:
    found = deepcopy(base)
    for name, value in changes.items():
        found[name] = merged(found.get(name) or {}, value) if isinstance(value, dict) else value
    return found


def at(path: str, value: Any) -> Json:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value  # type: ignore[no-any-return]


def spec(around: Json, changes: Json) -> Json:
    base: Json = gpu_pool()["spec"]
    return merged(merged(base, around), changes)


def look(seen: Observed) -> tuple[Desired, dict[ChildKey, Json]]:
    found = desired(seen)
    assert found.manifests, seen.gpu_pool
    return found, by_key(found.manifests)


def processes(manifests: dict[ChildKey, Json], folder: Path) -> dict[str, Any]:
    """What each process makes of the files written for it."""
    config = manifests[ChildKey("Secret", KEY.namespace, "pool-config")]
    read: dict[str, Any] = {"engine": {}}
    for name in config["data"]:
        file = folder / name
        file.write_text(entry(config, name), "utf-8")
        if name == "scheduler.json":
            read["scheduler"] = read_scheduler_config(file, holder="test")
            read["core"] = core_config(read["scheduler"])
        elif name == "gateway.json":
            read["gateway"] = read_gateway_config(file)
        else:
            read["engine"][name] = read_sidecar_config(file)
    return read


def places(pool: Json, folder: Path) -> dict[str, Any]:
    """All that is made of a pool, by where it is used."""
    folder.mkdir()
    elsewhere = model_pool("green", "mistral", namespace="green")
    seen = observed({**gpu_pool(), "spec": pool}, model_pool("red", "llama"), elsewhere)
    found, manifests = look(seen)
    assert seen.gpu_pool is not None
    assert seen.gpu_pool.value is not None
    parsed = seen.gpu_pool.value.spec
    rest = {key: one for key, one in manifests.items() if key.kind != "Secret"}
    operator = (parsed.scaling, sorted(model.name for model in found.attached.served))
    return {**processes(manifests, folder), "manifests": rest, "operator": operator}


def test_every_setting_of_the_schema_is_listed_here() -> None:
    assert set(settings()) == set(SETTINGS) | LOCAL


def test_a_gateway_is_sent_no_default_that_it_has_itself() -> None:
    assert TOKENIZER_BYTES == MOST_TOKENIZER_BYTES


@pytest.mark.parametrize("path", SETTINGS)
def test_a_setting_makes_a_difference_where_it_is_used(path: str, tmp_path: Path) -> None:
    value, wanted, around = SETTINGS[path]
    before = places(spec(around, {}), tmp_path / "before")
    after = places(spec(around, at(path, value)), tmp_path / "after")
    differs = {place for place, found in before.items() if found != after[place]}
    assert wanted <= differs


def test_the_place_of_batches_reaches_the_gateway_of_one_machine() -> None:
    metadata = {"name": KEY.name, "namespace": KEY.namespace}
    settings = LocalSettings(
        run_folder=Path("/run/q"), sockets=Path("/run/s"), segments=Path("/dev/shm/q"), python="python3"
    )
    keys = {"bucket": "night", "credentialsFile": "/srv/keys"}
    for given, said in (({"folder": "/srv/night"}, "/srv/night"), ({"s3": keys}, "/srv/keys"), ({"claim": "c"}, None)):
        pool = GpuPool.model_validate({**gpu_pool(), "metadata": metadata, "spec": spec({}, {"batches": given})})
        models = ModelPool.model_validate({**model_pool("red", "llama"), "metadata": metadata}, strict=False)
        (gateway,) = (pod for pod in reconcile(Pool(pool, (models,)), settings) if pod.role is PodRole.GATEWAY)
        found: Any = gateway.config.get("batches", {})
        assert (found.get("folder") or found.get("s3", {}).get("credentials_file")) == said


def test_the_port_of_metrics_reaches_the_scheduler_of_one_machine() -> None:
    metadata = {"name": KEY.name, "namespace": KEY.namespace}
    asked = spec({}, at("scheduling.metricsPort", 9100))
    pool = GpuPool.model_validate({**gpu_pool(), "metadata": metadata, "spec": asked})
    models = ModelPool.model_validate({**model_pool("red", "llama"), "metadata": metadata}, strict=False)
    settings = LocalSettings(
        run_folder=Path("/run/q"), sockets=Path("/run/s"), segments=Path("/dev/shm/q"), python="python3"
    )
    (scheduler,) = (pod for pod in reconcile(Pool(pool, (models,)), settings) if pod.role is PodRole.SCHEDULER)
    assert str(scheduler.config["metrics_listen"]).endswith(":9100")
