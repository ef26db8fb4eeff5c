"""Who has which Secret, and who may reach which port: every pod what it needs, nothing that another role needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from operator_objects import PLATFORM, Json, by_key, entry, gpu_pool, model_pool, observed

from aegaeon_operator.config import from_environment
from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey
from aegaeon_operator.reconcile.cluster.platform import RedisAt
from aegaeon_operator.reconcile.cluster.shards import SHARDS

API_KEY, TOKEN = "sk-tenant", "hub-token"
SPLIT = {"engines": None, "prefill": {"replicas": 1}, "decode": {"replicas": 1}}
HUB = {"huggingFace": {"repository": "org/one", "credentialsSecretRef": {"name": "hub", "key": "token"}}}
WEB = {"http": {"url": "https://models.example/two", "credentialsSecretRef": {"name": "hub", "key": "token"}}}
ANYWHERE = "anywhere"
PROXIES = "gateway.networking.k8s.io/gateway-name; gateway.envoyproxy.io/owning-gateway-name"
MODELS = {f"pool-models-{shard}:models.json" for shard in range(SHARDS)}
CREDENTIALS = {f"pool-credentials-{shard}" for shard in range(SHARDS)}
ENGINES = "decode,engine,prefill"


def made(**spec: Any) -> dict[ChildKey, Json]:
    memory = {"deviceBytes": "13Mi", "slabSize": "256Ki", "hostModelCache": "32Mi", "hostKv": "12Mi"}
    pool = gpu_pool(memory=memory | {"disk": {"path": "/cache"}}, gateway={"endpointPicker": {}}, **spec)
    tenant = {"name": "red", "keySecretRef": {"name": "keys", "key": "red"}}
    sources = [{"name": "one", "source": HUB}, {"name": "two", "source": WEB}]
    platform = replace(PLATFORM, redis=RedisAt("rediss://redis:6379", Path("/password")))
    seen = observed(
        pool,
        model_pool("red", tenants=[tenant], models=sources),
        platform=platform,
        redis={"password": "redis-password"},
        secrets={("infra", "keys"): {"red": API_KEY}, ("infra", "hub"): {"token": TOKEN}},
    )
    return by_key(desired(seen).manifests)


def mounted(found: dict[ChildKey, Json]) -> dict[str, set[str]]:
    """Secrets by component whose pods have them, with the entry where they have one alone."""
    secrets = {}
    for key, one in found.items():
        if key.kind in ("Deployment", "StatefulSet"):
            volumes = one["spec"]["template"]["spec"]["volumes"]
            sources = [source["secret"] for one in volumes for source in one.get("projected", {}).get("sources", ())]
            sources += [one["secret"] | {"name": one["secret"]["secretName"]} for one in volumes if "secret" in one]
            secrets[key.name.removeprefix("pool-")] = {
                ":".join([source["name"], *(item["key"] for item in source.get("items", ()))]) for source in sources
            }
    return secrets


def test_each_pod_has_its_own_configuration_its_own_certificate_and_what_its_work_needs() -> None:
    assert mounted(made()) == {
        "scheduler": {"pool-config:scheduler.json", "pool-scheduler-tls", *MODELS},
        "standby": {"pool-config:scheduler.json", "pool-scheduler-tls", *MODELS},
        "gateway": {"pool-config:gateway.json", "pool-gateway-tls", "pool-prefix", "pool-redis", *CREDENTIALS},
        "engine": {"pool-config:engine.json", "pool-engine-tls", *CREDENTIALS},
        "picker": set(),
    }
    split = mounted(made(**SPLIT))
    for component in ("prefill", "decode"):
        assert split[component] == {f"pool-config:{component}.json", "pool-engine-tls", *CREDENTIALS}


def test_no_pod_has_the_ca_key_and_none_gets_secrets_by_environment() -> None:
    for key, one in made().items():
        if key.kind in ("Deployment", "StatefulSet"):
            text = str(one["spec"]["template"])
            assert "pool-ca" not in text
            assert "secretKeyRef" not in text
            assert "envFrom" not in text


def test_keys_of_tenants_reach_no_pod_and_credentials_of_sources_no_configuration() -> None:
    found = made()
    ours = {key.name: one for key, one in found.items() if key.kind == "Secret"}
    for config in (ours["pool-config"], *(one for name, one in ours.items() if name.startswith("pool-models-"))):
        for name in config["data"]:
            assert API_KEY not in entry(config, name)
            assert TOKEN not in entry(config, name)
    (shard,) = (one for name, one in ours.items() if name.startswith("pool-credentials-"))
    for credentials in (shard, ours["pool-credentials"]):
        assert {name: entry(credentials, name) for name in credentials["data"]} == {"infra.hub.token": TOKEN}
    tls_and_redis = [one for key, one in found.items() if key.kind == "Secret" and key.name == "pool-redis"]
    assert [entry(one, "password") for one in tls_and_redis] == ["redis-password"]


def who(peer: Json) -> Iterator[str]:
    """A peer of a NetworkPolicy in a word for each component or namespace."""
    if peer.get("namespaceSelector") == {}:
        (label,) = peer["podSelector"]["matchExpressions"]
        yield label["key"]
    elif "namespaceSelector" in peer:
        yield f"namespace {peer['namespaceSelector']['matchLabels']['kubernetes.io/metadata.name']}"
    else:
        assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "pool"
        (one_of,) = peer["podSelector"]["matchExpressions"]
        yield ",".join(one_of["values"])


def reached(found: dict[ChildKey, Json]) -> dict[tuple[str, int], str]:
    """Who may reach which port of which component."""
    rows = {}
    for key, one in found.items():
        if key.kind == "NetworkPolicy":
            assert one["spec"]["policyTypes"] == ["Ingress"]
            for rule in one["spec"]["ingress"]:
                (port,) = rule["ports"]
                names = [name for peer in rule.get("from", ()) for name in who(peer)]
                rows[key.name.removeprefix("pool-"), port["port"]] = "; ".join(names) or ANYWHERE
    return rows


def test_each_port_is_reachable_by_its_clients_alone() -> None:
    monitoring, operator = "namespace monitoring", f"namespace {PLATFORM.namespace}"
    assert reached(made()) == {
        **{("standby", port): reached(made())["scheduler", port] for port in (7000, 7001, 7002)},
        ("gateway", 8000): ANYWHERE,
        ("gateway", 7200): ENGINES,
        ("gateway", 9090): monitoring,
        ("scheduler", 7000): "decode,engine,gateway,prefill",
        ("scheduler", 7002): operator,
        ("scheduler", 7001): monitoring,
        ("engine", 7101): monitoring,
        ("prefill", 7101): monitoring,
        ("decode", 7101): monitoring,
        ("picker", 9002): PROXIES,
        ("picker", 9090): monitoring,
    }


@pytest.mark.parametrize(
    ("names", "expected"),
    [("", None), ("*", ANYWHERE), ("a, b", "namespace a; namespace b"), (None, "namespace monitoring")],
)
def test_metrics_are_scraped_from_the_namespaces_that_are_named(names: str | None, expected: str | None) -> None:
    env = {} if names is None else {"AEGAEON_METRICS_NAMESPACES": names}
    seen = observed(gpu_pool(), platform=from_environment(env).platform)
    rows = reached(by_key(desired(seen).manifests))
    assert {rows.get(at) for at in (("gateway", 9090), ("scheduler", 7001), ("engine", 7101))} == {expected}
    assert rows["gateway", 8000] == ANYWHERE


def test_every_port_between_pods_has_a_row() -> None:
    found = made()
    rows = reached(found)
    for key, one in found.items():
        if key.kind in ("Deployment", "StatefulSet"):
            component = key.name.removeprefix("pool-")
            (container,) = one["spec"]["template"]["spec"]["containers"]
            open_ports = {port["containerPort"] for port in container["ports"] if port["name"] != "health"}
            assert open_ports == {port for of, port in rows if of == component}
            assert "metrics" in {port["name"] for port in container["ports"]}
