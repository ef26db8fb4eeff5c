"""A Secret is read in the namespace of the object that names it, and in no other."""

from __future__ import annotations

import pytest
from operator_hostile import objects
from operator_objects import KEY, gpu_pool, model_pool, observed
from operator_text_rules import TABLE, Rule

from aegaeon_operator.kube.gather import named_secrets
from aegaeon_operator.reconcile.cluster.desired import desired


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
