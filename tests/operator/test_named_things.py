"""Every text in the manifests that could name a path, a URL, a Secret or another object, its rule, and hostile values.

A field that is new in the types fails here until it is decided what it may name: operator_text_rules.py has the rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from operator_hostile import HOSTILE, OTHERS, accepted, objects
from operator_objects import Json
from operator_text_rules import SOURCE, SOURCES, TABLE, WHEN, Rule

from aegaeon_operator.spec.crd import definitions


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
    """Fails for a field that is new: give it a rule in operator_text_rules.py, and the code that holds it to that."""
    found = set()
    for plural, definition in definitions().items():
        (version,) = definition["spec"]["versions"]
        found |= set(texts(version["schema"]["openAPIV3Schema"]["properties"]["spec"], plural))
    assert found == TABLE.keys()


def test_every_rule_that_forbids_something_is_tried() -> None:
    assert HOSTILE.keys() | {Rule.WORD, Rule.REMOTE} == set(Rule)
    assert set(TABLE.values()) == set(Rule)


CASES = [(path, value) for path, rule in TABLE.items() for value in HOSTILE.get(rule, ())]


@pytest.mark.parametrize(("path", "value"), CASES)
def test_a_hostile_value_is_refused_with_a_sentence_and_reaches_nothing(path: str, value: str) -> None:
    good, made, catalog = accepted(*objects(path, value))
    assert not good, f"{path}: {value!r} was accepted"
    assert "secret-of-blue" not in made + catalog
    assert OTHERS not in made + catalog
    assert not value or json.dumps(value) not in catalog


def test_default_values_serve() -> None:
    """The frame of the hostile cases: what they are refused for is the value alone."""
    for source in SOURCES:
        assert accepted(*objects(f"{source}.hostPath", "one"))[0]
    for path, value in (
        (f"{SOURCE}.http.url", "https://models.example/a"),
        (f"{SOURCE}.s3.endpoint", "https://store.example"),
        (f"{SOURCE}.huggingFace.credentialsSecretRef.name", "hub"),
        ("gpupools.volumes.models.path", "/srv/models"),
        ("gpupools.memory.disk.path", "/srv/models-of-others"),
        ("gpupools.memory.disk.path", "/srv/müll/"),
        ("gpupools.allowedSources[]", "*.example.com"),
        ("gpupools.egress.httpsProxy", "http://proxy.example:3128"),
        ("gpupools.egress.noProxy[]", ".example.com:8443"),
        ("gpupools.egress.noProxy[]", "fd00::/8"),
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
        (f"gpupools.podTemplate.affinity.podAffinity.{WHEN[0]}[].namespaces[]", "stores"),
        (f"gpupools.podTemplate.affinity.podAntiAffinity.{WHEN[1]}[].podAffinityTerm.namespaces[]", "stores"),
    ):
        assert accepted(*objects(path, value))[0], path
