"""Pod templates of a pool: settings merged into its pods, and checks that they leave the operator's own alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import Field, model_validator

from aegaeon_operator.spec.base import DottedName, ObjectName, Strict
from aegaeon_operator.spec.cel import list_map, rules
from aegaeon_operator.spec.exclusive_fields import ExclusiveFields
from aegaeon_operator.spec.kubernetes import Annotations, Labels
from aegaeon_operator.spec.pods.containers import Container, Env, InitContainer, OwnMount, ResourceAmounts
from aegaeon_operator.spec.pods.lists import unique
from aegaeon_operator.spec.pods.placement import Affinity, Spread, Toleration
from aegaeon_operator.spec.pods.reserved import CONTAINERS, VARIABLES, VOLUMES
from aegaeon_operator.spec.pods.volumes import PodVolume

_CLAIMS = ExclusiveFields("resource_claim_name", "resource_claim_template_name")
_OWN = "are reserved; choose other names"
_OWN_CONTAINERS = f"containers and initContainers: {', '.join(CONTAINERS)} {_OWN}"
_OWN_VOLUMES = f"volumes: {', '.join(VOLUMES)} {_OWN}"
_OWN_VARIABLES = f"env: {', '.join(VARIABLES)} {_OWN}"
_DUPLICATE = "containers and initContainers must have different names; rename one"
_NO_VOLUME = "volumeMounts must name volumes of the same template; add the volume, or correct the name"
_NO_CLAIM = "resources.claims must name resourceClaims of the same template; add the claim, or correct the name"


def _all(field: str, item: str, holds: str) -> str:
    """Return a rule for all items of a list; an omitted template has no defaults yet when the rule is evaluated."""
    return f"(!has(self.{field.partition('.')[0]}) || self.{field}.all({item}, {holds}))"


def _of_all(field: str, item: str, holds: str) -> str:
    """Return a rule for the items of a list of the pool's own container and of all additional containers."""
    beside = (_all(where, "c", f"c.{field}.all({item}, {holds})") for where in ("containers", "initContainers"))
    return " && ".join((_all(field, item, holds), *beside))


def _not_reserved(name: str, names: tuple[str, ...]) -> str:
    return f"!({name} in {list(names)})"


class PodClaim(Strict):
    """A resource claim of the pods (resource.k8s.io). Set exactly one of the fields beside its name."""

    model_config = rules(_CLAIMS.rule)

    name: ObjectName = Field(description="Name that containers refer to.")
    resource_claim_name: DottedName | None = Field(
        default=None, description="Name of a ResourceClaim in the namespace, which all pods share."
    )
    resource_claim_template_name: DottedName | None = Field(
        default=None,
        description="Name of a ResourceClaimTemplate in the namespace, from which each pod gets a claim of its own.",
    )

    _exactly_one = _CLAIMS.validator


class PodTemplate(Strict):
    """A template merged into pods; the operator's own settings (its labels, the accelerator) stay."""

    model_config = rules(
        (
            " && ".join(_all(of, "c", _not_reserved("c.name", CONTAINERS)) for of in ("containers", "initContainers")),
            _OWN_CONTAINERS,
        ),
        (_all("containers", "c", "!self.initContainers.exists(i, i.name == c.name)"), _DUPLICATE),
        (_all("volumes", "v", _not_reserved("v.name", VOLUMES)), _OWN_VOLUMES),
        (_all("env", "e", _not_reserved("e.name", VARIABLES)), _OWN_VARIABLES),
        (_of_all("volumeMounts", "m", "self.volumes.exists(v, v.name == m.name)"), _NO_VOLUME),
        (_of_all("resources.claims", "k", "self.resourceClaims.exists(r, r.name == k.name)"), _NO_CLAIM),
    )

    labels: Labels = Field(default={}, description="Additional labels.")
    annotations: Annotations = Field(default={}, description="Additional annotations.")
    node_selector: Labels = Field(default={}, description="Labels that a node must have.")
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = Field(
        default=(), description="Tolerations of nodes' taints."
    )
    affinity: Affinity | None = Field(default=None, description="Affinity to nodes and pods.")
    topology_spread_constraints: Annotated[tuple[Spread, ...], Field(max_length=8)] = Field(
        default=(), description="Topology spread over nodes, zones and other domains."
    )
    priority_class_name: DottedName | None = Field(default=None, description="Priority class of the pods.")
    runtime_class_name: DottedName | None = Field(default=None, description="Runtime class, for example nvidia.")
    resources: ResourceAmounts = Field(
        default=ResourceAmounts(), description="CPU and memory; the operator adds an engine's accelerator."
    )
    env: Env = Field(default=(), description="Additional environment variables of the pool's own container.")
    volume_mounts: Annotated[
        tuple[OwnMount, ...], Field(max_length=16, json_schema_extra=list_map("mountPath")), unique("mountPath")
    ] = Field(default=(), description="Mounts of the template's volumes in the pool's own container.")
    volumes: Annotated[
        tuple[PodVolume, ...], Field(max_length=32, json_schema_extra=list_map("name")), unique("name")
    ] = Field(default=(), description="Additional volumes of the pods.")
    containers: Annotated[
        tuple[Container, ...], Field(max_length=8, json_schema_extra=list_map("name")), unique("name")
    ] = Field(default=(), description="Additional containers.")
    init_containers: Annotated[
        tuple[InitContainer, ...], Field(max_length=8, json_schema_extra=list_map("name")), unique("name")
    ] = Field(default=(), description="Containers that exit before the pool's own starts, and sidecars.")
    resource_claims: Annotated[
        tuple[PodClaim, ...], Field(max_length=8, json_schema_extra=list_map("name")), unique("name")
    ] = Field(default=(), description="Devices of dynamic resource allocation; Kubernetes 1.34 or newer.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        return self._refused((*self._own_names(), *self._unknown_names()))

    def _own_names(self) -> Iterator[str]:
        """Yield a problem for each name that is reserved or a duplicate."""
        containers = [container.name for container in (*self.containers, *self.init_containers)]
        checks = (
            (containers, CONTAINERS, _OWN_CONTAINERS),
            ([volume.name for volume in self.volumes], VOLUMES, _OWN_VOLUMES),
            ([variable.name for variable in self.env], VARIABLES, _OWN_VARIABLES),
        )
        for names, reserved, message in checks:
            if not set(names).isdisjoint(reserved):
                yield message
        if len(set(containers)) < len(containers):
            yield _DUPLICATE

    def _unknown_names(self) -> Iterator[str]:
        """Yield a problem if a container uses a volume or a claim that the template does not have."""
        containers = (*self.containers, *self.init_containers)
        mounts = [*self.volume_mounts, *(mount for container in containers for mount in container.volume_mounts)]
        resources = [self.resources, *(container.resources for container in containers)]
        claims = {claim.name for amounts in resources for claim in amounts.claims}
        if not {mount.name for mount in mounts} <= {volume.name for volume in self.volumes}:
            yield _NO_VOLUME
        if not claims <= {claim.name for claim in self.resource_claims}:
            yield _NO_CLAIM
