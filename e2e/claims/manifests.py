"""What a driver and an administrator tell the API server: devices of nodes, their class, and claims for one of them."""

from __future__ import annotations

from typing import Any

from e2e.claims.driver import DRIVER, GROUP, VERSION

Json = dict[str, Any]
ONE_GPU = "one-gpu"
# What a pod template says, so that each engine has a claim of its own; resources go beside others of the container.
CLAIMS = [{"name": "gpu", "resourceClaimTemplateName": ONE_GPU}]
RESOURCES = {"claims": [{"name": "gpu"}]}


def resource(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"name": name}, "spec": spec}


def device_class() -> Json:
    """Of all devices of the driver."""
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    return resource("DeviceClass", DRIVER, {"selectors": [selector]})


def claim_template() -> Json:
    """Of claims for one device."""
    one = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    return resource("ResourceClaimTemplate", ONE_GPU, {"spec": {"devices": {"requests": [one]}}})


def devices_of(node: str, count: int, generation: int = 1) -> Json:
    """What a driver publishes of a node."""
    of = {"name": node, "generation": generation, "resourceSliceCount": 1}
    found = [{"name": f"gpu-{number}"} for number in range(count)]
    return resource("ResourceSlice", f"{node}-gpus", {"driver": DRIVER, "nodeName": node, "pool": of, "devices": found})


def allocated(claims: list[Json]) -> dict[str, str]:
    """By the pod that has it reserved: the node whose device its claim was allocated."""
    of_pods = [one["status"] for one in claims if one.get("status", {}).get("reservedFor")]
    results = [(one["reservedFor"][0]["name"], one["allocation"]["devices"]["results"]) for one in of_pods]
    assert all(one["driver"] == DRIVER for _, found in results for one in found)
    return {name: found[0]["pool"] for name, found in results}
