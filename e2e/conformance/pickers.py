"""The images that the suite's manifests name: a picker, ours or GIE's reference, and GIE's echo server."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from e2e.cluster import images
from e2e.cluster.binaries import CONFORMANCE, REFERENCE_PICKER, build, source
from e2e.cluster.layout import Layout
from e2e.conformance.manifests import Named
from e2e.kubectl import define, filenames, kubectl

Picker = Literal["aegaeon", "reference"]

# The last version of GIE that brings its whole picker; later ones have it elsewhere.
_REFERENCE_MODULE = "sigs.k8s.io/gateway-api-inference-extension"
_REFERENCE_KINDS = ("inferenceobjectives", "inferencemodelrewrites")
# What GIE's picker needs to obey the suite's headers, as ours needs --conformance.
_REFERENCE_CONFIG = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: header-based-testing-filter
  - type: destination-endpoint-served-verifier
  - type: max-score-picker
  - type: single-profile-handler
schedulingProfiles:
  - name: conformance
    plugins: [{pluginRef: header-based-testing-filter}, {pluginRef: max-score-picker}]
"""
REFERENCE_OPTIONS = ("--metrics-endpoint-auth=false", "--tracing=false")
_REFERENCE_RIGHTS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reference-picker}
rules: [{apiGroups: [inference.networking.x-k8s.io], resources: ["*"], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reference-picker}
subjects: [{kind: ServiceAccount, name: default}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reference-picker}
"""


def load(layout: Layout, named: Named, picker: Picker) -> None:
    """Onto every node, under the names of the suite's manifests."""
    build(CONFORMANCE)
    made = _ours(layout, named.picker_image) if picker == "aegaeon" else _reference(layout, named.picker_image)
    images.load(layout, [made, images.of_program(layout, named.echo_image, layout.binaries / "echo-basic")])


def reference_kinds() -> list[Path]:
    """Definitions that GIE's picker follows beside InferencePools."""
    folder = source(REFERENCE_PICKER, _REFERENCE_MODULE) / "config" / "crd" / "bases"
    return [folder / f"inference.networking.x-k8s.io_{kind}.yaml" for kind in _REFERENCE_KINDS]


def prepare_reference(kubeconfig: Path, namespace: str) -> None:
    """Kinds and rights that the suite's manifests do not bring for GIE's older picker."""
    define(kubeconfig, reference_kinds())
    kubectl(kubeconfig, "create", "namespace", namespace)
    kubectl(kubeconfig, "-n", namespace, "apply", "-f", "-", stdin=_REFERENCE_RIGHTS)


def forget_reference(kubeconfig: Path) -> None:
    """The kinds; rights go with their namespace."""
    kubectl(kubeconfig, "delete", "--ignore-not-found", *filenames(reference_kinds()))


def _ours(layout: Layout, name: str) -> Path:
    control = images.product_images(layout)[0]
    text = (
        f'FROM docker-archive:{control}\nCOPY entry.py /opt/conformance/\nENTRYPOINT ["python3", '
        '"/opt/conformance/entry.py"]\n'
    )
    return images.of_files(layout, name, text, Path(__file__).with_name("entry.py"))


def _reference(layout: Layout, name: str) -> Path:
    build((REFERENCE_PICKER,))
    options = (*REFERENCE_OPTIONS, "--config-text", _REFERENCE_CONFIG)
    return images.of_program(layout, name, layout.binaries / REFERENCE_PICKER, options=options)
