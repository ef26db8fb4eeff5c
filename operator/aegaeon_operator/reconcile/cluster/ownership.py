"""Ownership of objects: a pool owns those whose controller, by uid, is its GpuPool or one of its ModelPools.

Labels only select candidates, since `kubectl get -o yaml`, backup tools and mirrors of Secrets copy them. An object
that is not owned is neither changed nor deleted, regardless of its labels and name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Live, Subject


class Owner(NamedTuple):
    """The controller of an object, in the same namespace: a copy in another namespace is not owned."""

    namespace: str
    uid: str


def owner_of(body: Json) -> Owner | None:
    """Return the owner of an object or a manifest; None without a controller."""
    reference = _controller(body)
    return Owner(body["metadata"]["namespace"], str(reference["uid"])) if reference else None


def subject_of(body: Json) -> Subject | None:
    """Return the controller as a subject of Events; None without a controller."""
    reference = _controller(body)
    if reference is None:
        return None
    return Subject(ChildKey(reference["kind"], body["metadata"]["namespace"], reference["name"]), reference["uid"])


def owned(pools: Iterable[Live[Any]], objects: Iterable[Json]) -> Iterator[Json]:
    """Yield the objects that these GpuPools and ModelPools own."""
    owners = {Owner(pool.namespace, pool.uid) for pool in pools}
    return (body for body in objects if owner_of(body) in owners)


def _controller(body: Json) -> Json | None:
    references = body["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)
