"""Containers that run beside a pool's own, and what a container is given: environment, mounts, resources."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from aegaeon_operator.spec.base import PATH, DottedName, ObjectName, SecretRef, Strict
from aegaeon_operator.spec.cel import field_rules, list_map, rules
from aegaeon_operator.spec.kubernetes import Amount, Amounts, Image
from aegaeon_operator.spec.one_of import OneOf
from aegaeon_operator.spec.pods.lists import given_once
from aegaeon_operator.spec.pods.owned import FOLDERS, PORTS
from aegaeon_operator.spec.quantity import parse_amount
from aegaeon_operator.spec.volumes import apart

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_.-]*$"
_PORTS_SAID = f"must be none of {', '.join(map(str, PORTS))}, which the pool's own containers have"
_VALUES = OneOf("value", "value_from")
_SOURCES = OneOf("field_ref", "resource_field_ref", "secret_key_ref", "config_map_key_ref")
_PROBES = OneOf("http_get", "tcp_socket", "grpc", "exec")
_PROBED = "probes of an init container need restartPolicy: Always; one that ends before the others start has none"
_ABOVE = "requests must not be more than limits; raise the limit, or lower the request"
_Text = Annotated[str, Field(max_length=4096)]
_Words = Annotated[tuple[_Text, ...], Field(max_length=64)]
_Port = Annotated[int, Field(ge=1, le=65535)]
_Seconds = Annotated[int, Field(ge=0, le=86400)]
_OWN_FOLDERS, _free_for_mounts = apart(FOLDERS)


def _free_port(value: int) -> int:
    if value in PORTS:
        raise ValueError(_PORTS_SAID)
    return value


FreePort = Annotated[
    int,
    Field(ge=1, le=65535, json_schema_extra=field_rules((f"!(self in {list(PORTS)})", _PORTS_SAID))),
    AfterValidator(_free_port),
]


class FieldRef(Strict):
    """A field of the pod."""

    field_path: Annotated[str, Field(min_length=1, max_length=316)] = Field(description="For example status.hostIP.")


class ResourceFieldRef(Strict):
    """A resource of a container."""

    resource: Annotated[str, Field(min_length=1, max_length=253)] = Field(description="For example limits.memory.")
    container_name: ObjectName | None = Field(default=None, description="Of which container; left out: this one.")
    divisor: Amount | None = Field(default=None, description="Unit in which it is given.")


class OptionalKey(SecretRef):
    """An entry of a Secret or a ConfigMap in the GpuPool's namespace."""

    name: DottedName = Field(description="Name of the object.")
    optional: bool = Field(default=False, description="Whether the pod starts without it.")


class ValueSource(Strict):
    """Where the value of a variable comes from. Exactly one of the fields."""

    model_config = rules(_SOURCES.rule)

    field_ref: FieldRef | None = Field(default=None, description="A field of the pod.")
    resource_field_ref: ResourceFieldRef | None = Field(default=None, description="A resource of a container.")
    secret_key_ref: OptionalKey | None = Field(default=None, description="An entry of a Secret.")
    config_map_key_ref: OptionalKey | None = Field(default=None, description="An entry of a ConfigMap.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        return _SOURCES.check(self)


class EnvVar(Strict):
    """An environment variable."""

    model_config = rules(_VALUES.rule)

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=VARIABLE)] = Field(description="Its name.")
    value: _Text | None = Field(default=None, description="Its value; $(NAME) is another variable's.")
    value_from: ValueSource | None = Field(default=None, description="Or where its value comes from.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        return _VALUES.check(self)


class Mount(Strict):
    """A volume of the template in a container."""

    name: ObjectName = Field(description="Name of the volume.")
    mount_path: Annotated[str, Field(min_length=2, max_length=512, pattern=PATH)] = Field(
        description="Folder in the container."
    )
    sub_path: Annotated[str, Field(max_length=512)] = Field(default="", description="Folder in the volume.")
    read_only: bool = Field(default=False, description="Whether it can only be read.")
    mount_propagation: Literal["None", "HostToContainer"] | None = Field(
        default=None, description="Whether mounts that the node adds later appear."
    )


class OwnMount(Mount):
    """A volume of the template in the pool's own container."""

    mount_path: Annotated[
        str,
        Field(min_length=2, max_length=512, pattern=PATH, json_schema_extra=_OWN_FOLDERS),
        AfterValidator(_free_for_mounts),
    ] = Field(description="Folder in the container, apart from the operator's own.")


class ContainerClaim(Strict):
    """A resource claim of the template that a container uses."""

    name: ObjectName = Field(description="Name of the claim, as in resourceClaims.")
    request: Annotated[str, Field(max_length=253)] = Field(
        default="", description="One of its requests; left out: all that it was allocated."
    )


Claims = Annotated[
    tuple[ContainerClaim, ...],
    Field(max_length=8, json_schema_extra=list_map("name")),
    given_once("name"),
]


class ResourceAmounts(Strict):
    """What a container is promised, and what it may use."""

    model_config = rules(
        (
            "!has(self.requests) || !has(self.limits) || self.requests.all(r, !(r in self.limits) || "
            "!isQuantity(string(self.requests[r])) || !isQuantity(string(self.limits[r])) || "
            "quantity(string(self.requests[r])).compareTo(quantity(string(self.limits[r]))) <= 0)",
            _ABOVE,
        )
    )

    requests: Amounts = Field(default={}, description="What the scheduler of Kubernetes reserves, for example cpu: 2.")
    limits: Amounts = Field(default={}, description="The most that it may use.")
    claims: Claims = Field(
        default=(), description="Devices of dynamic resource allocation: claims of resourceClaims that it uses."
    )

    @model_validator(mode="after")
    def _within_limits(self) -> Self:
        both = [(one, self.limits[name]) for name, one in self.requests.items() if name in self.limits]
        amounts = [(parse_amount(request) or 0, parse_amount(limit) or 0) for request, limit in both]
        return self._refused((_ABOVE,) if any(request > limit for request, limit in amounts) else ())


class HttpGet(Strict):
    """A request that must be answered with 200 to 399."""

    port: _Port = Field(description="Port of the container.")
    path: _Text = Field(default="/", description="Path of the URL.")
    scheme: Literal["HTTP", "HTTPS"] = Field(default="HTTP", description="Protocol.")


class TcpSocket(Strict):
    """A port that must take connections."""

    port: _Port = Field(description="Port of the container.")


class GrpcHealth(Strict):
    """A gRPC health service that must say SERVING."""

    port: _Port = Field(description="Port of the container.")
    service: Annotated[str, Field(max_length=253)] = Field(default="", description="Service that is asked about.")


class Exec(Strict):
    """A command that must end with 0."""

    command: Annotated[tuple[_Text, ...], Field(min_length=1, max_length=64)] = Field(description="The command.")


class Probe(Strict):
    """What kubelet asks a container. Exactly one of httpGet, tcpSocket, grpc, exec."""

    model_config = rules(_PROBES.rule)

    http_get: HttpGet | None = Field(default=None, description="An HTTP request.")
    tcp_socket: TcpSocket | None = Field(default=None, description="A connection.")
    grpc: GrpcHealth | None = Field(default=None, description="A gRPC health check.")
    exec: Exec | None = Field(default=None, description="A command.")
    initial_delay_seconds: _Seconds = Field(default=0, description="Before the first one.")
    period_seconds: Annotated[int, Field(ge=1, le=86400)] = Field(default=10, description="Between two.")
    timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = Field(default=1, description="For an answer.")
    failure_threshold: Annotated[int, Field(ge=1, le=86400)] = Field(default=3, description="Failures in a row.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        return _PROBES.check(self)


class ContainerPort(Strict):
    """A port that a container listens on."""

    container_port: FreePort = Field(description="Its number.")
    name: Annotated[str, Field(max_length=15)] = Field(default="", description="Its name.")
    protocol: Literal["TCP", "UDP", "SCTP"] = Field(default="TCP", description="Its protocol.")


Env = Annotated[tuple[EnvVar, ...], Field(max_length=64, json_schema_extra=list_map("name")), given_once("name")]


class Container(Strict):
    """A container beside the pool's own, confined as that is: the user of the pod, no privileges, no capabilities, an
    image that is only read."""

    name: ObjectName = Field(description="Name of the container.")
    image: Image = Field(description="Its image.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="When nodes pull it; left out: as for the pool's own."
    )
    command: _Words = Field(default=(), description="In place of the image's entrypoint.")
    args: _Words = Field(default=(), description="In place of the image's arguments.")
    working_dir: Annotated[str, Field(max_length=512)] = Field(default="", description="Folder that it starts in.")
    env: Env = Field(default=(), description="Its environment.")
    ports: Annotated[
        tuple[ContainerPort, ...],
        Field(max_length=16, json_schema_extra=list_map("containerPort")),
        given_once("containerPort"),
    ] = Field(default=(), description="Ports that it listens on.")
    resources: ResourceAmounts = Field(default=ResourceAmounts(), description="What it is promised, and may use.")
    volume_mounts: Annotated[
        tuple[Mount, ...], Field(max_length=16, json_schema_extra=list_map("mountPath")), given_once("mountPath")
    ] = Field(default=(), description="Volumes of the template.")
    startup_probe: Probe | None = Field(default=None, description="Whether it has started.")
    readiness_probe: Probe | None = Field(default=None, description="Whether it is ready; without it the pod is not.")
    liveness_probe: Probe | None = Field(default=None, description="Whether it lives; else it is restarted.")


class InitContainer(Container):
    """A container that ends before the pool's own starts, or with restartPolicy Always a sidecar that starts before it
    and ends after it."""

    model_config = rules(
        (
            "has(self.restartPolicy) || "
            "!(has(self.startupProbe) || has(self.readinessProbe) || has(self.livenessProbe))",
            _PROBED,
        )
    )

    restart_policy: Literal["Always"] | None = Field(
        default=None, description="Always: a sidecar; left out: it must end before the next one starts."
    )

    @model_validator(mode="after")
    def _probed(self) -> Self:
        if self.restart_policy is None and (self.startup_probe or self.readiness_probe or self.liveness_probe):
            raise ValueError(_PROBED)
        return self
