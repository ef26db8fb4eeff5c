"""What the suite's own manifests name: images, namespaces, and the Services behind which it expects pickers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from e2e.cluster.binaries import source

_MODULE = "sigs.k8s.io/gateway-api-inference-extension/conformance"
_PICKER, _ECHO = "epp", "echoserver"  # containers


@dataclass(frozen=True, slots=True)
class Named:
    """Read from the suite's base manifest, so that another version of it needs no change here."""

    picker_image: str
    echo_image: str
    namespaces: tuple[str, ...]
    pickers: tuple[str, ...]  # host names of their Services


def read() -> Named:
    """From the module that e2e/binaries/conformance pins."""
    text = (source("conformance", _MODULE) / "resources" / "base.yaml").read_text("utf-8")
    return named(list(yaml.safe_load_all(text)))


def named(documents: list[dict[str, Any]]) -> Named:
    """Pure part of `read`. One image for all pickers and one for all servers, else ValueError."""
    of_kind: dict[str, list[dict[str, Any]]] = {}
    for document in documents:
        of_kind.setdefault(document["kind"], []).append(document)
    containers = [one for each in of_kind["Deployment"] for one in each["spec"]["template"]["spec"]["containers"]]
    (picker,) = {one["image"] for one in containers if one["name"].startswith(_PICKER)}
    (echo,) = {one["image"] for one in containers if one["name"].startswith(_ECHO)}
    pickers = [
        f"{pool['spec']['endpointPickerRef']['name']}.{pool['metadata']['namespace']}.svc.cluster.local"
        for pool in of_kind["InferencePool"]
    ]
    names = tuple(each["metadata"]["name"] for each in of_kind["Namespace"])
    return Named(picker, echo, names, tuple(dict.fromkeys(pickers)))
