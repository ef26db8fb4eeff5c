"""Endpoint pickers of pools: their pods, routes, limits, and who reaches them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_objects import PLATFORM, Json, gpu_pool, observed
from tests.operator.test_cluster_pods import MODELS, made, pod

from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey
from aegaeon_operator.reconcile.cluster.report import reports
from aegaeon_operator.spec.kubernetes import EndpointPicker, PickerLimits
from aegaeon_picker.__main__ import main as picker_command
from aegaeon_picker.transport.limits import Limits


def test_routes_of_a_pool_with_a_picker_lead_to_the_gateway_pods_that_it_picks_from() -> None:
    objects = made(gateway={"endpointPicker": {"failureMode": "FailClose"}})
    backend = objects[ChildKey("HTTPRoute", "infra", "red")]["spec"]["rules"][0]["backendRefs"][0]
    assert (backend["kind"], backend["name"]) == ("InferencePool", "pool")
    pool = objects[ChildKey("InferencePool", "infra", "pool")]["spec"]
    assert pool["selector"]["matchLabels"].items() <= pod(objects, "pool-gateway")["metadata"]["labels"].items()
    service = objects[ChildKey("Service", "infra", pool["endpointPickerRef"]["name"])]["spec"]
    assert service["selector"].items() <= pod(objects, "pool-picker")["metadata"]["labels"].items()
    assert [(port["port"], port["appProtocol"]) for port in service["ports"]] == [(9002, "http2")]
    assert pool["endpointPickerRef"]["port"]["number"] == 9002


def test_an_external_picker_is_named_and_nothing_is_created_for_it() -> None:
    objects = made(gateway={"endpointPicker": {"service": {"name": "epp", "port": 9999}}})
    ref = objects[ChildKey("InferencePool", "infra", "pool")]["spec"]["endpointPickerRef"]
    assert (ref["name"], ref["port"]["number"]) == ("epp", 9999)
    assert not [key for key in objects if key.name == "pool-picker"]


def picker_peers(**settings: Any) -> list[Json]:
    """Who may reach port 9002."""
    policy = made(gateway={"endpointPicker": settings})[ChildKey("NetworkPolicy", "infra", "pool-picker")]
    (rule,) = (rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == 9002)
    return list(rule["from"])


def test_by_default_the_proxies_of_gateways_alone_reach_a_picker() -> None:
    labels = [peer["podSelector"]["matchExpressions"][0]["key"] for peer in picker_peers()]
    assert labels == ["gateway.networking.k8s.io/gateway-name", "gateway.envoyproxy.io/owning-gateway-name"]


def test_a_pool_may_name_who_reaches_its_picker() -> None:
    named = [
        {"namespace": "edge"},
        {"namespace": "edge", "podLabels": {"app": "envoy"}},
        {"podLabels": {"app": "envoy"}},
        {"cidr": "130.211.0.0/22"},
    ]
    edge = {"matchLabels": {"kubernetes.io/metadata.name": "edge"}}
    assert picker_peers(allowedFrom=named) == [
        {"namespaceSelector": edge},
        {"namespaceSelector": edge, "podSelector": {"matchLabels": {"app": "envoy"}}},
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "envoy"}}},
        {"ipBlock": {"cidr": "130.211.0.0/22"}},
    ]


@pytest.mark.parametrize("peer", [{}, {"cidr": "10.0.0.0/8", "namespace": "edge"}, {"cidr": "here"}])
def test_a_peer_with_neither_or_both_selectors_is_refused(peer: Json) -> None:
    with pytest.raises(ValueError, match="allowedFrom"):
        EndpointPicker.model_validate({"allowedFrom": [peer]})


def test_limits_of_a_picker_reach_its_command_line() -> None:
    objects = made(gateway={"endpointPicker": {"limits": {"streams": 100, "bufferedMib": 16}}})
    command = pod(objects, "pool-picker")["spec"]["containers"][0]["command"]
    assert command[-4:] == ["--max-streams", "100", "--max-buffered-mib", "16"]
    context = picker_command.make_context("picker", [*command[3:], "--endpoints", ","])
    assert (context.params["max_streams"], context.params["max_buffered_mib"]) == (100, 16)


def test_the_limits_of_the_manifest_are_those_of_the_picker() -> None:
    spoken, limits = PickerLimits(), Limits()
    assert (spoken.connections, spoken.connections_per_address) == (limits.connections, limits.connections_per_address)
    assert (spoken.streams, spoken.streams_per_connection) == (limits.streams, limits.streams_per_connection)
    assert spoken.buffered_mib << 20 == limits.buffered_bytes


@pytest.mark.parametrize(("provider", "expected"), [("none", False), ("istio", True)])
def test_istio_is_configured_not_to_verify_a_self_signed_certificate(provider: Any, expected: bool) -> None:
    objects = made(gateway={"endpointPicker": {}}, platform=replace(PLATFORM, provider=provider))
    assert (ChildKey("DestinationRule", "infra", "pool-picker") in objects) == expected


def test_a_pool_is_ready_when_its_picker_is() -> None:
    seen = observed(gpu_pool(gateway={"endpointPicker": {}}), MODELS)
    (report,) = (report for report in reports(seen, desired(seen), {}) if report.about.kind == "GpuPool")
    conditions = {each["type"]: each["status"] for each in report.status["conditions"]}
    assert (conditions["PickerReady"], conditions["Ready"]) == ("False", "False")
