"""Containers of a pod template: environment, mounts, resources, probes."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from aegaeon_operator.spec.base import PATH, DottedName, ObjectName, SecretRef, Strict
from aegaeon_operator.spec.cel import field_rules, list_map, rules
from aegaeon_operator.spec.exclusive_fields import ExclusiveFields
from aegaeon_operator.spec.kubernetes import Amount, Amounts, Image
from aegaeon_operator.spec.pods.lists import unique
from aegaeon_operator.spec.pods.reserved import FOLDERS, PORTS
from aegaeon_operator.spec.quantity import parse_amount
from aegaeon_operator.spec.volumes import apart

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_.-]*$"
_PORTS_MESSAGE = f"must be none of {', '.join(map(str, PORTS))}: Aegaeon's containers use them; choose another port"
_VALUES = ExclusiveFields("value", "value_from")
_SOURCES = ExclusiveFields("field_ref", "resource_field_ref", "secret_key_ref", "config_map_key_ref")
_PROBES = ExclusiveFields("http_get", "tcp_socket", "grpc", "exec")
_PROBED = "probes of an init container need restartPolicy: Always; add it, or remove the probes"
_ABOVE = "requests must not exceed limits; raise the limit, or lower the request"
_Text = Annotated[str, Field(max_length=4096)]
_Words = Annotated[tuple[_Text, ...], Field(max_length=64)]
_Port = Annotated[int, Field(ge=1, le=65535)]
_Seconds = Annotated[int, Field(ge=0, le=86400)]
_OWN_FOLDERS, _free_for_mounts = apart(FOLDERS)


def _free_port(value: int) -> int:
    if value in PORTS:
        raise ValueError(_PORTS_MESSAGE)
    return value


FreePort = Annotated[
    int,
    Field(ge=1, le=65535, json_schema_extra=field_rules((f"!(self in {list(PORTS)})", _PORTS_MESSAGE))),
    AfterValidator(_free_port),
]


class FieldRef(Strict):
    """A reference to a field of the pod."""

    field_path: Annotated[str, Field(min_length=1, max_length=316)] = Field(
        description="Path of the field, for example status.hostIP."
    )


class ResourceFieldRef(Strict):
    """A reference to a resource of a container."""

    resource: Annotated[str, Field(min_length=1, max_length=253)] = Field(
        description="Name of the resource, for example limits.memory."
    )
    container_name: ObjectName | None = Field(default=None, description="Name of the container; default: this one.")
    divisor: Amount | None = Field(default=None, description="Unit of the value.")


class OptionalKey(SecretRef):
    """An entry of a Secret or a ConfigMap in the GpuPool's namespace."""

    name: DottedName = Field(description="Name of the object.")
    optional: bool = Field(default=False, description="If true, the pod starts without the entry.")


class ValueSource(Strict):
    """A source of a variable's value. Set exactly one of the fields."""

    model_config = rules(_SOURCES.rule)

    field_ref: FieldRef | None = Field(default=None, description="A field of the pod.")
    resource_field_ref: ResourceFieldRef | None = Field(default=None, description="A resource of a container.")
    secret_key_ref: OptionalKey | None = Field(default=None, description="An entry of a Secret.")
    config_map_key_ref: OptionalKey | None = Field(default=None, description="An entry of a ConfigMap.")

    _exactly_one = _SOURCES.validator


class EnvVar(Strict):
    """An environment variable."""

    model_config = rules(_VALUES.rule)

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=VARIABLE)] = Field(
        description="Name of the variable."
    )
    value: _Text | None = Field(default=None, description="Value; $(NAME) is replaced by that variable's value.")
    value_from: ValueSource | None = Field(default=None, description="Source of the value.")

    _exactly_one = _VALUES.validator


class Mount(Strict):
    """A mount of a volume of the template in a container."""

    name: ObjectName = Field(description="Name of the volume.")
    mount_path: Annotated[str, Field(min_length=2, max_length=512, pattern=PATH)] = Field(
        description="Folder in the container."
    )
    sub_path: Annotated[str, Field(max_length=512)] = Field(default="", description="Folder in the volume.")
    read_only: bool = Field(default=False, description="If true, mount it read-only.")
    mount_propagation: Literal["None", "HostToContainer"] | None = Field(
        default=None, description="HostToContainer: later mounts of the node appear in the container."
    )


class OwnMount(Mount):
    """A mount of a volume of the template in the pool's own container."""

    mount_path: Annotated[
        str,
        Field(min_length=2, max_length=512, pattern=PATH, json_schema_extra=_OWN_FOLDERS),
        AfterValidator(_free_for_mounts),
    ] = Field(description="Folder in the container; it must not overlap with folders that the operator mounts.")


class ContainerClaim(Strict):
    """A container's use of a resource claim of the template."""

    name: ObjectName = Field(description="Name of the claim, as in resourceClaims.")
    request: Annotated[str, Field(max_length=253)] = Field(
        default="", description="Name of a request of the claim; default: all devices of the claim."
    )


Claims = Annotated[
    tuple[ContainerClaim, ...],
    Field(max_length=8, json_schema_extra=list_map("name")),
    unique("name"),
]


class ResourceAmounts(Strict):
    """Resource requests and limits of a container."""

    model_config = rules(
        (
            "!has(self.requests) || !has(self.limits) || self.requests.all(r, !(r in self.limits) || "
            "!isQuantity(string(self.requests[r])) || !isQuantity(string(self.limits[r])) || "
            "quantity(string(self.requests[r])).compareTo(quantity(string(self.limits[r]))) <= 0)",
            _ABOVE,
        )
    )

    requests: Amounts = Field(
        default={}, description="Amounts reserved by the Kubernetes scheduler, for example cpu: 2."
    )
    limits: Amounts = Field(default={}, description="Maximum amounts.")
    claims: Claims = Field(
        default=(), description="Entries of resourceClaims that the container uses (dynamic resource allocation)."
    )

    @model_validator(mode="after")
    def _within_limits(self) -> Self:
        both = [(request, self.limits[name]) for name, request in self.requests.items() if name in self.limits]
        amounts = [(parse_amount(request) or 0, parse_amount(limit) or 0) for request, limit in both]
        return self._refused((_ABOVE,) if any(request > limit for request, limit in amounts) else ())


class HttpGet(Strict):
    """An HTTP GET request; status 200 to 399 is success."""

    port: _Port = Field(description="Port of the container.")
    path: _Text = Field(default="/", description="Path of the URL.")
    scheme: Literal["HTTP", "HTTPS"] = Field(default="HTTP", description="Protocol.")


class TcpSocket(Strict):
    """A TCP connection; an accepted connection is success."""

    port: _Port = Field(description="Port of the container.")


class GrpcHealth(Strict):
    """A gRPC health check; SERVING is success."""

    port: _Port = Field(description="Port of the container.")
    service: Annotated[str, Field(max_length=253)] = Field(default="", description="Service name in the health check.")


class Exec(Strict):
    """A command; exit status 0 is success."""

    command: Annotated[tuple[_Text, ...], Field(min_length=1, max_length=64)] = Field(
        description="The command and its arguments."
    )


class Probe(Strict):
    """A probe of a container by the kubelet. Set exactly one of httpGet, tcpSocket, grpc, exec."""

    model_config = rules(_PROBES.rule)

    http_get: HttpGet | None = Field(default=None, description="An HTTP GET request.")
    tcp_socket: TcpSocket | None = Field(default=None, description="A TCP connection.")
    grpc: GrpcHealth | None = Field(default=None, description="A gRPC health check.")
    exec: Exec | None = Field(default=None, description="A command.")
    initial_delay_seconds: _Seconds = Field(default=0, description="Delay before the first probe.")
    period_seconds: Annotated[int, Field(ge=1, le=86400)] = Field(default=10, description="Period of the probes.")
    timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = Field(default=1, description="Timeout of a probe.")
    failure_threshold: Annotated[int, Field(ge=1, le=86400)] = Field(
        default=3, description="Consecutive failures that count as failed."
    )

    _exactly_one = _PROBES.validator


class ContainerPort(Strict):
    """A port that a container listens on."""

    container_port: FreePort = Field(description="Number of the port.")
    name: Annotated[str, Field(max_length=15)] = Field(default="", description="Name of the port.")
    protocol: Literal["TCP", "UDP", "SCTP"] = Field(default="TCP", description="Protocol of the port.")


Env = Annotated[tuple[EnvVar, ...], Field(max_length=64, json_schema_extra=list_map("name")), unique("name")]


class Container(Strict):
    """An additional container. It has the same restrictions as the pool's own: the pod's user, no privileges, no
    capabilities, a read-only root file system."""

    name: ObjectName = Field(description="Name of the container.")
    image: Image = Field(description="Image of the container.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="Pull policy of the image; default: that of the pool's own images."
    )
    command: _Words = Field(default=(), description="Command, in place of the image's entrypoint.")
    args: _Words = Field(default=(), description="Arguments, in place of the image's.")
    working_dir: Annotated[str, Field(max_length=512)] = Field(default="", description="Working directory.")
    env: Env = Field(default=(), description="Environment variables.")
    ports: Annotated[
        tuple[ContainerPort, ...],
        Field(max_length=16, json_schema_extra=list_map("containerPort")),
        unique("containerPort"),
    ] = Field(default=(), description="Ports that it listens on.")
    resources: ResourceAmounts = Field(default=ResourceAmounts(), description="Resource requests and limits.")
    volume_mounts: Annotated[
        tuple[Mount, ...], Field(max_length=16, json_schema_extra=list_map("mountPath")), unique("mountPath")
    ] = Field(default=(), description="Mounts of the template's volumes.")
    startup_probe: Probe | None = Field(default=None, description="Probe that succeeds when the container has started.")
    readiness_probe: Probe | None = Field(default=None, description="Probe that must succeed for the pod to be ready.")
    liveness_probe: Probe | None = Field(default=None, description="Probe whose failure restarts the container.")


class InitContainer(Container):
    """A container that exits before the pool's own starts or, with restartPolicy Always, a sidecar that starts before
    it and stops after it."""

    model_config = rules(
        (
            "has(self.restartPolicy) || "
            "!(has(self.startupProbe) || has(self.readinessProbe) || has(self.livenessProbe))",
            _PROBED,
        )
    )

    restart_policy: Literal["Always"] | None = Field(
        default=None, description="Always: a sidecar. Default: the container must exit before the next one starts."
    )

    @model_validator(mode="after")
    def _probed(self) -> Self:
        if self.restart_policy is None and (self.startup_probe or self.readiness_probe or self.liveness_probe):
            raise ValueError(_PROBED)
        return self
