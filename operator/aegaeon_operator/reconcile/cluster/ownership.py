"""Which objects are a pool's own: those whose controller, by uid, is its GpuPool or one of its ModelPools.

Labels find candidates, and prove nothing: `kubectl get -o yaml`, backup tools and mirrors of Secrets copy them. What is
not owned is neither changed nor deleted, whatever its labels and its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Live, Subject


class Owner(NamedTuple):
    """The controller of an object. Owners are of the namespace of what they own: a copy elsewhere is not theirs."""

    namespace: str
    uid: str


def owner_of(body: Json) -> Owner | None:
    """Of an object or a manifest; None where it has no controller."""
    found = _controller(body)
    return Owner(body["metadata"]["namespace"], str(found["uid"])) if found else None


def subject_of(body: Json) -> Subject | None:
    """The controller as Events name it."""
    found = _controller(body)
    return (
        Subject(ChildKey(found["kind"], body["metadata"]["namespace"], found["name"]), found["uid"]) if found else None
    )


def owned(pools: Iterable[Live[Any]], objects: Iterable[Json]) -> Iterator[Json]:
    """Those of the objects that these GpuPools and ModelPools own."""
    owners = {Owner(one.namespace, one.uid) for one in pools}
    return (one for one in objects if owner_of(one) in owners)


def _controller(body: Json) -> Json | None:
    references = body["metadata"].get("ownerReferences") or ()
    return next((one for one in references if one.get("controller")), None)
