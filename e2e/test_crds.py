"""The API server and `aegaeon up` say the same of every manifest: what one refuses, the other refuses, by field."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from operator_hostile import HOSTILE, NODES_OWN
from operator_text_rules import Rule
from pydantic import ValidationError
from tests.operator.test_pod_templates import REFUSED as TAKEN

from aegaeon_operator.spec.explain import explain
from aegaeon_operator.spec.resources import GROUP, VERSION, GpuPool, ModelPool
from e2e.fuzz import DOCUMENTS, PLACES, VALUES, changed
from e2e.kubectl import kubectl

ENTRIES = {
    Rule.SERVER: (
        *("*", "huggingface.co", "*.hf.co", "http://*", "store", "https://store.internal:9000", "http://10.0.0.0/8:80"),
        *(
            "10.0.0.1",
            "10.0.0.1:80",
            "10.0.0.0/8",
            "fd00::/8",
            "::1",
            "[::1]",
            "[::1]:80",
            "http://[fd00::1]:80",
            "a_b",
        ),
    ),
    Rule.NETWORK: ("10.0.0.0/8", "0.0.0.0/0", "fd00::/8", "::/0", "10.0.0.1/32"),
}
KINDS: dict[str, type[GpuPool] | type[ModelPool]] = {"GpuPool": GpuPool, "ModelPool": ModelPool}


def locally(document: dict[str, Any]) -> list[str]:
    """The sentences of `aegaeon up` on one object."""
    kind = KINDS[document["kind"]]
    try:
        kind.model_validate_json(json.dumps(document))
    except ValidationError as error:
        return explain(error, kind)
    return []


def remotely(api: client.ApiClient, document: dict[str, Any]) -> list[str]:
    """What the API server finds, without keeping anything."""
    try:
        client.CustomObjectsApi(api).create_namespaced_custom_object(
            GROUP,
            VERSION,
            "default",
            f"{document['kind'].lower()}s",
            document,
            dry_run="All",
            field_validation="Strict",
        )
    except ApiException as error:
        if error.status not in (400, 422):
            raise
        status = json.loads(error.body or "{}")
        causes = (status.get("details") or {}).get("causes") or [{"field": "", "message": status["message"]}]
        return [f"{cause.get('field', '')}: {cause.get('message', '')}" for cause in causes]
    return []


def test_an_object_with_every_field_is_accepted_by_both(api: client.ApiClient) -> None:
    for document in DOCUMENTS:
        assert (locally(document), remotely(api, document)) == ([], [])


@pytest.mark.timeout(600)
@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), value=VALUES)
def test_both_give_the_same_verdict_and_name_the_field(
    api: client.ApiClient, place: tuple[int, tuple[Any, ...]], value: Any
) -> None:
    assume(not isinstance(value, str) or (".." not in value and not value.startswith("~")))  # see hostPath below
    document = changed(*place, value)
    here, there = locally(document), remotely(api, document)
    assert bool(here) == bool(there), (place, value, here, there)
    assert not there or any("spec" in sentence for sentence in there), there


@pytest.mark.parametrize(("name", "fits"), [("a" * 40, True), ("a" * 41, False), ("a.b", False), ("1a", False)])
def test_a_pool_whose_name_is_too_long_for_its_services_is_refused(
    api: client.ApiClient, name: str, fits: bool
) -> None:
    document = {**DOCUMENTS[0], "metadata": {"name": name}}
    here, there = locally(document), remotely(api, document)
    assert (not here, not there) == (fits, fits), (here, there)
    assert all("names of Services are derived from it" in sentence for sentence in there)


@pytest.mark.parametrize(("name", "fits"), [("a" * 63, True), ("a" * 64, False), ("a.b", False), ("1a", True)])
def test_a_model_pool_is_named_as_a_label_may_be(api: client.ApiClient, name: str, fits: bool) -> None:
    document = {**DOCUMENTS[1], "metadata": {"name": name}}
    here, there = locally(document), remotely(api, document)
    assert (not here, not there) == (fits, fits), (here, there)
    assert all("metadata.name must be at most 63" in sentence for sentence in there)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("models", 2, "source"), {"s3": {"bucket": "m", "credentialsFile": "/keys/s3"}}, "set credentialsSecretRef"),
        (("models", 3, "source", "http"), {"url": "http://a/b", "credentialsFile": "/x"}, "set credentialsSecretRef"),
        (
            ("models", 1, "source", "huggingFace"),
            {"repository": "a/b", "credentialsFile": "/x"},
            "credentialsSecretRef",
        ),
        (("tenants", 0), {"name": "red", "keyFile": "/keys/red"}, "set keySecretRef"),
        (("models", 0, "source", "hostPath"), "../other", "inside the GpuPool's volumes.models.path"),
        (("models", 0, "source", "hostPath"), "/srv/models/../../etc", "inside the GpuPool's volumes.models.path"),
        (("models", 0, "source", "hostPath"), "~/models", "inside the GpuPool's volumes.models.path"),
    ],
)
def test_fields_of_a_single_machine_are_refused_by_the_server_alone(
    api: client.ApiClient, path: tuple[Any, ...], value: Any, said: str
) -> None:
    document = changed(1, ("spec", *path), value)
    (sentence,) = remotely(api, document)
    assert said in sentence
    assert locally(document) == []


@pytest.mark.parametrize("path", ["/etc", "/etc/aegaeon/tls", "/srv/../etc", "/dev/shm", "/var", "/srv//a"])
def test_a_folder_of_models_that_contains_the_pods_own_folders_is_refused_by_both(
    api: client.ApiClient, path: str
) -> None:
    document = changed(0, ("spec", "volumes", "models", "path"), path)
    assert [bool(found) for found in (locally(document), remotely(api, document))] == [True, True]


@pytest.mark.parametrize("path", [*NODES_OWN, "/srv/models", "/srv/models/x", "/srv/", "//a", "/a\n", "relative", ""])
def test_a_disk_tier_where_others_need_the_folder_is_refused_by_both(api: client.ApiClient, path: str) -> None:
    document = changed(0, ("spec", "memory", "disk", "path"), path)
    assert [bool(found) for found in (locally(document), remotely(api, document))] == [True, True]


@pytest.mark.parametrize("rule", [Rule.SERVER, Rule.NETWORK])
def test_both_parse_hosts_and_networks_alike(api: client.ApiClient, rule: Rule) -> None:
    place = {Rule.SERVER: ("allowedSources", 0), Rule.NETWORK: ("gateway", "trustedProxies", 0)}[rule]
    for value in HOSTILE[rule]:
        document = changed(0, ("spec", *place), value)
        assert [bool(found) for found in (locally(document), remotely(api, document))] == [True, True], value
    for value in ENTRIES[rule]:
        document = changed(0, ("spec", *place), value)
        assert (locally(document), remotely(api, document)) == ([], [])


def test_changing_an_immutable_field_is_refused_with_the_remedy(api: client.ApiClient, kubeconfig: Path) -> None:
    pool = next(document for document in DOCUMENTS if document["kind"] == "ModelPool")
    objects = client.CustomObjectsApi(api)
    where = (GROUP, VERSION, "default", "modelpools")
    objects.create_namespaced_custom_object(*where, pool)
    try:
        for path, value, said in ((("gpuPoolRef", "name"), "other", "delete the object and create it again"),):
            document = changed(DOCUMENTS.index(pool), ("spec", *path), value)
            with pytest.raises(ApiException) as raised:
                objects.patch_namespaced_custom_object(*where, pool["metadata"]["name"], {"spec": document["spec"]})
            assert said in str(raised.value.body)
    finally:
        objects.delete_namespaced_custom_object(*where, pool["metadata"]["name"])


@pytest.mark.parametrize(
    ("number", "path", "value", "said"),
    [
        (0, ("memory", "deviceBytes"), "13MB", "must be a quantity of bytes such as 4096, 512Mi or 2G"),
        (0, ("memory", "disk", "size"), -1, "must be a quantity of bytes such as 4096, 512Mi or 2G"),
        (0, ("scheduling", "hold"), "10", "must be a duration such as 100ms, 10s or 1m30s"),
        (1, ("models", 0, "name"), "a b", "must be letters, digits, '.', '_', '/', ':', '@' and '-', beginning"),
        (1, ("models", 3, "source", "http", "url"), "ftp://a", "must be an http:// or https:// address"),
        (0, ("podTemplate", "topologySpreadConstraints", 0, "topologyKey"), "a b", "must be a name such as"),
        (0, ("podTemplate", "env", 0, "name"), "A=B", "must be letters, digits, '_', '-' and '.'"),
        (0, ("podTemplate", "env", 2, "valueFrom", "resourceFieldRef", "divisor"), "x", "must be an amount such as 2"),
    ],
)
def test_errors_are_one_sentence_and_show_no_pattern(
    api: client.ApiClient, number: int, path: tuple[Any, ...], value: Any, said: str
) -> None:
    (sentence,) = remotely(api, changed(number, ("spec", *path), value))
    assert said in sentence
    assert "should match" not in sentence


def test_a_gpu_is_one_that_pods_ask_for_by_a_resource_or_a_claim(api: client.ApiClient) -> None:
    gpu = {"device": "cuda:0", "resourceName": "nvidia.com/gpu"}
    assert remotely(api, changed(0, ("spec", "accelerator"), gpu)) == []
    by_claim = changed(0, ("spec", "accelerator"), {"device": "cuda:0"})
    assert remotely(api, by_claim) == []
    by_claim["spec"]["podTemplate"]["resources"].pop("claims")
    (sentence,) = remotely(api, by_claim)
    assert "accelerator.device cuda:N needs accelerator.resourceName" in sentence


@pytest.mark.parametrize(("template", "said"), TAKEN)
@pytest.mark.parametrize("of", ["podTemplate", "controlPodTemplate"])
def test_what_of_pods_is_the_operators_own_is_refused_by_both(
    api: client.ApiClient, of: str, template: dict[str, Any], said: str
) -> None:
    document = copy.deepcopy(DOCUMENTS[0])
    document["spec"] |= {"podTemplate": {}, "controlPodTemplate": {}, of: template}
    document["spec"]["volumes"]["models"]["path"] = "/srv/models"
    (here,), (there,) = locally(document), remotely(api, document)
    assert said in here
    servers_own = {"is set by the operator": "unknown field", "duplicate ": "Duplicate value"}
    assert next((its for ours, its in servers_own.items() if ours in said), said) in there


def test_fields_that_do_not_fit_each_other_are_reported_at_once_by_both(api: client.ApiClient) -> None:
    document = changed(0, ("spec", "adapters"), {"memory": "63Mi"})
    document["spec"]["memory"]["hostKv"] = "256Ki"
    document["spec"]["accelerator"]["count"] = 2
    document["spec"].pop("prefill")
    for found in ("\n".join(locally(document)), "\n".join(remotely(api, document))):
        for said in ("need", "adapters need backend vllm", "less than one slab", "raise hostKv"):
            assert said in found


def test_adapters_must_leave_room_for_a_slab(api: client.ApiClient) -> None:
    document = changed(0, ("spec", "backend"), "vllm")
    for memory, fits in (("64513Ki", False), ("65Mi", False), ("63Mi", True)):
        document["spec"]["adapters"] = {"memory": memory}
        document["spec"]["memory"]["slabSize"] = "1Mi"
        assert [not found for found in (locally(document), remotely(api, document))] == [fits, fits], memory


def test_a_model_pool_has_512_models_and_adapters_at_most(api: client.ApiClient) -> None:
    document = copy.deepcopy(DOCUMENTS[1])
    document["spec"]["tenants"] = []
    hub = {"huggingFace": {"repository": "org/model"}}
    for adapters, fits in ((1, True), (2, False)):
        models: list[dict[str, Any]] = [{"name": f"model-{number}", "source": hub} for number in range(511)]
        document["spec"]["models"] = models
        models[0]["adapters"] = [{"name": f"adapter-{number}", "source": hub} for number in range(adapters)]
        assert [not found for found in (locally(document), remotely(api, document))] == [fits, fits]


def test_names_of_secrets_and_claims_may_have_dots(api: client.ApiClient) -> None:
    for number, path in (
        (1, ("tenants", 0, "keySecretRef", "name")),
        (1, ("models", 1, "source", "huggingFace", "credentialsSecretRef", "name")),
        (0, ("images", "pullSecrets", 0)),
        (0, ("volumes", "sharedClaim")),
    ):
        document = changed(number, ("spec", *path), "registry.example.com")
        assert (locally(document), remotely(api, document)) == ([], [])
        for bad in ("a..b", ".a", "a.", "A.b"):
            document = changed(number, ("spec", *path), bad)
            assert [bool(found) for found in (locally(document), remotely(api, document))] == [True, True], bad


def test_every_field_is_explained(api: client.ApiClient, kubeconfig: Path) -> None:
    for kind in ("gpupools", "modelpools"):
        text = kubectl(kubeconfig, "explain", f"{kind}.spec", "--recursive=false")
        assert "<empty>" not in text
        assert "DESCRIPTION" in text
