"""Where pools' pods may go: nowhere else than their configuration has them go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_objects import KEY, PLATFORM, Json, by_key, gpu_pool, model_pool, observed

from aegaeon_operator.config import from_environment
from aegaeon_operator.errors import SettingsError
from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey
from aegaeon_operator.reconcile.cluster.platform import Egress, RedisAt

RESTRICTED = replace(PLATFORM, egress=Egress(api_server_ports=(6443,), dns_ports=(53, 5353)))
DNS = {
    "ports": [{"port": port, "protocol": protocol} for port in (53, 5353) for protocol in ("UDP", "TCP")],
}
API_SERVER = {"ports": [{"port": 6443, "protocol": "TCP"}]}
PICKER: Json = {"gateway": {"endpointPicker": {}}}
ROLES = ("scheduler", "standby", "gateway", "engine", "prefill", "decode", "picker")


def egress(component: str, *objects: Json, platform: Any = RESTRICTED) -> list[Json] | None:
    """Of the policy of a component; None: it says nothing of it."""
    found = by_key(desired(observed(*objects, platform=platform)).manifests)
    spec = found[ChildKey("NetworkPolicy", KEY.namespace, f"{KEY.name}-{component}")]["spec"]
    assert ("Egress" in spec["policyTypes"]) == ("egress" in spec)
    return spec.get("egress")


def of_pool(*components: str) -> Json:
    labels = {"app.kubernetes.io/name": "aegaeon", "app.kubernetes.io/instance": KEY.name}
    one_of = {"key": "app.kubernetes.io/component", "operator": "In", "values": sorted(components)}
    return {"podSelector": {"matchLabels": labels, "matchExpressions": [one_of]}}


def tcp(*ports: int, to: list[Json] | None = None) -> Json:
    found: Json = {"ports": [{"port": port, "protocol": "TCP"} for port in ports]} if ports else {}
    return found | ({"to": to} if to else {})


def namespace(name: str) -> Json:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


SCHEDULERS = tcp(7000, to=[of_pool("scheduler", "standby")])
SINKS = tcp(7200, to=[of_pool("gateway")])
PUBLIC = [
    {
        "ipBlock": {
            "cidr": "0.0.0.0/0",
            "except": [
                *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
                *("192.168.0.0/16", "224.0.0.0/4", "240.0.0.0/4"),
            ],
        }
    },
    {"ipBlock": {"cidr": "2000::/3"}},
]


@pytest.mark.parametrize("component", ROLES)
def test_unless_the_platform_asks_for_it_nothing_is_said_of_it(component: str) -> None:
    assert egress(component, gpu_pool(**PICKER), model_pool("red", "llama"), platform=PLATFORM) is None


@pytest.mark.parametrize(
    ("component", "allowed"),
    [
        ("scheduler", [DNS, API_SERVER]),
        ("standby", [DNS, API_SERVER]),
        ("picker", [DNS, API_SERVER]),
        ("gateway", [DNS, SCHEDULERS]),
        ("engine", [DNS, SCHEDULERS, SINKS]),
        ("prefill", [DNS, SCHEDULERS, SINKS]),
        ("decode", [DNS, SCHEDULERS, SINKS]),
    ],
)
def test_with_models_on_the_nodes_pods_reach_their_pool_and_nothing_outside(
    component: str, allowed: list[Json]
) -> None:
    assert egress(component, gpu_pool(**PICKER), model_pool("red", "llama")) == allowed


def model(**source: Any) -> Json:
    """A ModelPool of one model from there."""
    return model_pool("red", models=[{"name": "far", "source": source}])


@pytest.mark.parametrize("component", ["gateway", "engine"])
@pytest.mark.parametrize(
    ("source", "allowed", "rules"),
    [
        ({"huggingFace": {"repository": "a/b"}}, [], [tcp(443, to=PUBLIC)]),
        ({"http": {"url": "http://models.example.com:8080/a"}}, [], [tcp(443, 8080, to=PUBLIC)]),
        ({"s3": {"bucket": "b"}}, ["s3.amazonaws.com"], [tcp(443, to=PUBLIC), tcp(443)]),
        ({"s3": {"bucket": "b"}}, ["*.amazonaws.com"], [tcp(443, to=PUBLIC)]),
        (
            {"s3": {"bucket": "b", "endpoint": "http://minio.storage.svc:9000"}},
            ["minio.storage.svc"],
            [tcp(443, 9000, to=PUBLIC), tcp(to=[namespace("storage")])],
        ),
        (
            {"http": {"url": "http://store.internal:9000/a"}},
            ["store.internal"],
            [tcp(443, 9000, to=PUBLIC), tcp(9000)],
        ),
        (
            {"http": {"url": "http://10.1.2.3:9000/a"}},
            ["10.0.0.0/8"],
            [tcp(443, 9000, to=[{"ipBlock": {"cidr": "10.0.0.0/8"}}])],
        ),
        (
            {"http": {"url": "http://10.1.2.3:9000/a"}},
            ["10.1.2.3:9000"],
            [tcp(9000, to=[{"ipBlock": {"cidr": "10.1.2.3/32"}}])],
        ),
        (
            {"huggingFace": {"repository": "a/b"}},
            ["huggingface.co", "mirror.hub.svc.cluster.local"],
            [tcp(443, to=PUBLIC), tcp(443), tcp(to=[namespace("hub")])],
        ),
    ],
)
def test_sources_of_models_are_reached_as_far_as_the_pool_allows_them(
    component: str, source: Json, allowed: list[str], rules: list[Json]
) -> None:
    pool = gpu_pool(allowedSources=allowed, memory={**gpu_pool()["spec"]["memory"], "disk": {"path": "/var/models"}})
    before = [DNS, SCHEDULERS] + ([SINKS] if component == "engine" else [])

    assert egress(component, pool, model(**source)) == before + rules


def test_an_adapters_source_is_reached_as_its_models() -> None:
    adapter = {"name": "lora", "source": {"http": {"url": "https://adapters.example.com:8443/a"}}}
    served = model_pool("red", models=[{"name": "near", "source": {"hostPath": "near"}, "adapters": [adapter]}])
    memory = {**gpu_pool()["spec"]["memory"], "disk": {"path": "/var/models"}}
    pool = gpu_pool(backend="vllm", adapters={"memory": "1Mi"}, memory=memory)

    assert egress("engine", pool, served) == [DNS, SCHEDULERS, SINKS, tcp(443, 8443, to=PUBLIC)]


def test_redis_traces_and_batches_are_reached_by_those_that_use_them() -> None:
    platform = replace(RESTRICTED, redis=RedisAt("rediss://aegaeon-redis.aegaeon-system.svc:6379/0"))
    pool = gpu_pool(
        tracing={"endpoint": "http://10.0.0.7:4317"},
        batches={"s3": {"bucket": "night", "endpoint": "https://s3.internal"}},
    )
    collector = tcp(4317, to=[{"ipBlock": {"cidr": "10.0.0.7/32"}}])

    assert egress("gateway", pool, platform=platform) == [
        DNS,
        SCHEDULERS,
        collector,
        tcp(to=[namespace("aegaeon-system")]),
        tcp(443),
    ]
    assert egress("scheduler", pool, platform=platform) == [DNS, API_SERVER, collector]
    assert egress("engine", pool, platform=platform) == [DNS, SCHEDULERS, SINKS]


def test_a_service_without_a_namespace_is_one_of_the_pools() -> None:
    pool = gpu_pool(tracing={"endpoint": "http://collector:4317"})

    assert egress("scheduler", pool) == [DNS, API_SERVER, tcp(to=[namespace(KEY.namespace)])]


@pytest.mark.parametrize(
    ("variables", "wrong"),
    [
        ({"AEGAEON_POOL_EGRESS": "yes"}, "AEGAEON_POOL_EGRESS is 'yes'"),
        ({"AEGAEON_POOL_EGRESS": "true", "AEGAEON_DNS_PORTS": "dns"}, "AEGAEON_DNS_PORTS is 'dns'"),
        ({"AEGAEON_POOL_EGRESS": "true", "AEGAEON_API_SERVER_PORTS": "443,0"}, "AEGAEON_API_SERVER_PORTS is '443,0'"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(variables: dict[str, str], wrong: str) -> None:
    with pytest.raises(SettingsError, match=wrong):
        from_environment(variables)


def test_the_environment_says_the_ports_of_the_cluster() -> None:
    given = {"AEGAEON_POOL_EGRESS": "true", "AEGAEON_API_SERVER_PORTS": "16443", "AEGAEON_DNS_PORTS": "53, 5353"}

    assert from_environment(given).platform.egress == Egress((16443,), (53, 5353))
    assert from_environment({}).platform.egress is None


def test_where_sources_and_traces_pass_a_proxy_pods_reach_it_in_place_of_them() -> None:
    proxies = {"httpsProxy": "http://10.0.0.9:3128", "httpProxy": "http://proxy.example:8080"}
    models = [
        {"name": "a", "source": {"huggingFace": {"repository": "org/a"}}},
        {"name": "b", "source": {"http": {"url": "http://store.models.svc/b"}}},
    ]
    tracing = {"endpoint": "http://collector.example:4317"}
    found = egress("engine", gpu_pool(egress=proxies), model_pool("red", models=models))
    assert found is not None
    proxy = tcp(3128, to=[{"ipBlock": {"cidr": "10.0.0.9/32"}}])
    assert proxy in found
    assert found.index(proxy) > 0
    of_scheduler = egress("scheduler", gpu_pool(egress=proxies, tracing=tracing), model_pool("red", models=models))
    assert of_scheduler is not None
    assert tcp(8080) in of_scheduler
    assert tcp(4317) not in of_scheduler
    alone = egress("engine", gpu_pool(egress=proxies), model_pool("red", models=models[:1]))
    assert alone == [DNS, SCHEDULERS, SINKS, proxy]
