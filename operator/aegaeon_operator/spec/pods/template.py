"""What is laid over the pods of a pool, and what of them stays the operator's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import Field, model_validator

from aegaeon_operator.spec.base import DottedName, ObjectName, Strict
from aegaeon_operator.spec.cel import list_map, rules
from aegaeon_operator.spec.kubernetes import Annotations, Labels
from aegaeon_operator.spec.one_of import OneOf
from aegaeon_operator.spec.pods.containers import Container, Env, InitContainer, OwnMount, ResourceAmounts
from aegaeon_operator.spec.pods.lists import given_once
from aegaeon_operator.spec.pods.owned import CONTAINERS, VARIABLES, VOLUMES
from aegaeon_operator.spec.pods.placement import Affinity, Spread, Toleration
from aegaeon_operator.spec.pods.volumes import PodVolume

_CLAIMS = OneOf("resource_claim_name", "resource_claim_template_name")
_OWN = "are the pool's own: take other names"
_OWN_CONTAINERS = f"containers and initContainers: {', '.join(CONTAINERS)} {_OWN}"
_OWN_VOLUMES = f"volumes: {', '.join(VOLUMES)} {_OWN}"
_OWN_VARIABLES = f"env: {', '.join(VARIABLES)} {_OWN}"
_TWICE = "containers and initContainers must not have a name in common; rename one"
_NO_VOLUME = "volumeMounts must name volumes of the same template; add the volume, or correct the name"
_NO_CLAIM = "resources.claims must name resourceClaims of the same template; add the claim, or correct the name"


def _all(field: str, item: str, holds: str) -> str:
    """A rule about the items of a list. A template that is left out is looked at before its fields have defaults."""
    return f"(!has(self.{field.partition('.')[0]}) || self.{field}.all({item}, {holds}))"


def _of_all(field: str, item: str, holds: str) -> str:
    """The same of the pool's own container and of the others."""
    beside = (_all(where, "c", f"c.{field}.all({item}, {holds})") for where in ("containers", "initContainers"))
    return " && ".join((_all(field, item, holds), *beside))


def _taken(name: str, names: tuple[str, ...]) -> str:
    return f"!({name} in {list(names)})"


class PodClaim(Strict):
    """A resource claim of the pods (resource.k8s.io). Exactly one of the fields beside its name."""

    model_config = rules(_CLAIMS.rule)

    name: ObjectName = Field(description="Name by which containers use it.")
    resource_claim_name: DottedName | None = Field(
        default=None, description="A ResourceClaim of the namespace, which all of the pods share."
    )
    resource_claim_template_name: DottedName | None = Field(
        default=None, description="A ResourceClaimTemplate of the namespace, by which each pod gets a claim of its own."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        return _CLAIMS.check(self)


class PodTemplate(Strict):
    """Laid over pods; what the operator sets itself (labels of its own, the accelerator) stays."""

    model_config = rules(
        (
            " && ".join(_all(of, "c", _taken("c.name", CONTAINERS)) for of in ("containers", "initContainers")),
            _OWN_CONTAINERS,
        ),
        (_all("containers", "c", "!self.initContainers.exists(i, i.name == c.name)"), _TWICE),
        (_all("volumes", "v", _taken("v.name", VOLUMES)), _OWN_VOLUMES),
        (_all("env", "e", _taken("e.name", VARIABLES)), _OWN_VARIABLES),
        (_of_all("volumeMounts", "m", "self.volumes.exists(v, v.name == m.name)"), _NO_VOLUME),
        (_of_all("resources.claims", "k", "self.resourceClaims.exists(r, r.name == k.name)"), _NO_CLAIM),
    )

    labels: Labels = Field(default={}, description="Further labels.")
    annotations: Annotations = Field(default={}, description="Further annotations.")
    node_selector: Labels = Field(default={}, description="Labels that a node must have.")
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = Field(
        default=(), description="Taints of nodes that pods may run in spite of."
    )
    affinity: Affinity | None = Field(default=None, description="Nodes and pods that they are placed by.")
    topology_spread_constraints: Annotated[tuple[Spread, ...], Field(max_length=8)] = Field(
        default=(), description="How they are spread over nodes, zones and other places."
    )
    priority_class_name: DottedName | None = Field(default=None, description="Priority class of the pods.")
    runtime_class_name: DottedName | None = Field(default=None, description="Runtime class, for example nvidia.")
    resources: ResourceAmounts = Field(
        default=ResourceAmounts(), description="CPU and memory; an engine's accelerator comes by itself."
    )
    env: Env = Field(default=(), description="Further environment of the pool's own container.")
    volume_mounts: Annotated[
        tuple[OwnMount, ...], Field(max_length=16, json_schema_extra=list_map("mountPath")), given_once("mountPath")
    ] = Field(default=(), description="Volumes of the template in the pool's own container.")
    volumes: Annotated[
        tuple[PodVolume, ...], Field(max_length=32, json_schema_extra=list_map("name")), given_once("name")
    ] = Field(default=(), description="Further volumes of the pods.")
    containers: Annotated[
        tuple[Container, ...], Field(max_length=8, json_schema_extra=list_map("name")), given_once("name")
    ] = Field(default=(), description="Containers beside the pool's own.")
    init_containers: Annotated[
        tuple[InitContainer, ...], Field(max_length=8, json_schema_extra=list_map("name")), given_once("name")
    ] = Field(default=(), description="Containers that end before the pool's own starts, and sidecars.")
    resource_claims: Annotated[
        tuple[PodClaim, ...], Field(max_length=8, json_schema_extra=list_map("name")), given_once("name")
    ] = Field(default=(), description="Devices of dynamic resource allocation; Kubernetes 1.34 or newer.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        return self._refused((*self._own_names(), *self._unknown_names()))

    def _own_names(self) -> Iterator[str]:
        """What is given the name of something of the operator's, or of another container."""
        beside = [one.name for one in (*self.containers, *self.init_containers)]
        owned = (
            (beside, CONTAINERS, _OWN_CONTAINERS),
            ([one.name for one in self.volumes], VOLUMES, _OWN_VOLUMES),
            ([one.name for one in self.env], VARIABLES, _OWN_VARIABLES),
        )
        for names, taken, said in owned:
            if not set(names).isdisjoint(taken):
                yield said
        if len(set(beside)) < len(beside):
            yield _TWICE

    def _unknown_names(self) -> Iterator[str]:
        """What is used and not there."""
        beside = (*self.containers, *self.init_containers)
        mounts = {one.name for one in self.volume_mounts} | {one.name for of in beside for one in of.volume_mounts}
        of_all = (self.resources, *(one.resources for one in beside))
        claims = {one.name for resources in of_all for one in resources.claims}
        if not mounts <= {one.name for one in self.volumes}:
            yield _NO_VOLUME
        if not claims <= {one.name for one in self.resource_claims}:
            yield _NO_CLAIM
