"""The parts of both kinds that mean something on Kubernetes alone: pods, volumes, routes, scaling.

Descriptions are what `kubectl explain` prints.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic.config import JsonDict

from aegaeon_operator.spec.base import PATH, DottedName, ObjectName, PositiveDuration, PositiveQuantity, Strict
from aegaeon_operator.spec.cel import field_rules, rules

TOKENIZER_BYTES = 2 << 30
"""Memory of a gateway's tokenizers unless the manifest says otherwise (MOST_TOKENIZER_BYTES in the gateway)."""
QUALIFIED = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
AMOUNT = r"^[0-9]{1,15}(\.[0-9]{1,9})?(m|[EPTGMK]i|[kMGTPE])?$"
_HOSTNAME = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_ORIGIN = r"^(\*|https?://[A-Za-z0-9.\-]+(:[0-9]{1,5})?)$"
_HEADER = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"

_NAMESPACE = r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$"
_CIDR = r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"
_CIDR_SAID = "must be a network such as 10.0.0.0/8 or fd00::/8, without bits beyond its prefix"

QualifiedName = Annotated[str, Field(min_length=1, max_length=253, pattern=QUALIFIED)]
NamespaceOrAll = Annotated[str, Field(min_length=1, max_length=63, pattern=_NAMESPACE)]
Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:/@]*$")]
_Origin = Annotated[str, Field(min_length=1, max_length=253, pattern=_ORIGIN)]
_Text = Annotated[str, Field(max_length=1024)]
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)]


def _amount(value: object) -> object:
    """`cpu: 2` is a number in YAML; pods take both."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_AMOUNT_SCHEMA: JsonDict = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
    "maxLength": 32,
    "pattern": AMOUNT,
}
_AMOUNT_RULE = field_rules(
    (
        "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('0'))",
        "must be an amount such as 2, 500m or 4Gi",
    )
)
_Amount = Annotated[str, Field(max_length=32, pattern=AMOUNT), BeforeValidator(_amount)]
Amount = Annotated[_Amount, WithJsonSchema(_AMOUNT_SCHEMA)]


def _network(value: str) -> str:
    try:
        ip_network(value)
    except ValueError:
        raise ValueError(_CIDR_SAID) from None
    return value


Cidr = Annotated[
    str,
    Field(
        min_length=1,
        max_length=49,
        pattern=_CIDR,
        json_schema_extra=field_rules(("isCIDR(self) && cidr(self) == cidr(self).masked()", _CIDR_SAID)),
    ),
    AfterValidator(_network),
]
Amounts = Annotated[dict[str, Annotated[_Amount, WithJsonSchema(_AMOUNT_SCHEMA | _AMOUNT_RULE)]], Field(max_length=16)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=64)]
Annotations = Annotated[dict[str, _Text], Field(max_length=64)]


class Autoscaling(Strict):
    """When engines are added and taken away, between `min` and `max` of their role."""

    queue_wait: PositiveDuration = Field(
        default=10.0, description="An engine is added when a request has waited for so long."
    )
    kv_usage: Annotated[int, Field(ge=1, le=100)] = Field(
        default=90, description="Or when so many percent of the memory for KV cache stay in use."
    )
    idle: PositiveDuration = Field(
        default=300.0, description="One is taken away, drained first, when the rest had nothing to do for so long."
    )


class PickerService(Strict):
    """A Service that speaks Envoy's ext_proc and picks the gateway pod of a request."""

    name: ObjectName = Field(description="Name of the Service, in the GpuPool's namespace.")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(default=9002, description="Its gRPC port.")


_ONE_PEER = "give either cidr, or namespace and podLabels or one of the two"


class PickerPeer(Strict):
    """Pods, or addresses outside of the cluster, that may connect to the picker."""

    model_config = rules(
        (
            "has(self.cidr) != (has(self.__namespace__) || (has(self.podLabels) && size(self.podLabels) > 0))",
            _ONE_PEER,
        ),
    )

    namespace: ObjectName | None = Field(default=None, description="Namespace of the pods; left out: any.")
    pod_labels: Labels = Field(default={}, description="Labels of the pods; left out: all of the namespace.")
    cidr: Cidr | None = Field(
        default=None, description="Addresses, for a gateway that does not run in the cluster, for example 10.0.0.0/8."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.cidr is not None) == bool(self.namespace or self.pod_labels):
            raise ValueError(_ONE_PEER)
        return self


class PickerLimits(Strict):
    """What all peers of a picker's pod together, and each of them, may take of it."""

    connections: Annotated[int, Field(ge=1, le=65536)] = Field(default=512, description="Connections together.")
    connections_per_address: Annotated[int, Field(ge=1, le=65536)] = Field(
        default=128, description="Connections of one address; an Envoy has one or more for each worker thread."
    )
    streams: Annotated[int, Field(ge=1, le=1 << 20)] = Field(default=16384, description="Open requests together.")
    streams_per_connection: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        default=1024, description="Open requests of one connection; an Envoy opens a further connection beyond."
    )
    buffered_mib: Annotated[int, Field(ge=1, le=65536)] = Field(
        default=128, description="MiB of incomplete messages and of answers that were not taken yet, together."
    )


class EndpointPicker(Strict):
    """Who picks the gateway pod of a request for an inference gateway."""

    replicas: Annotated[int, Field(ge=0, le=8)] = Field(
        default=1, description="Pods of our own picker, reached as Service NAME-picker on port 9002."
    )
    service: PickerService | None = Field(
        default=None, description="An external picker; the operator then creates no picker pods."
    )
    failure_mode: Literal["FailOpen", "FailClose"] = Field(
        default="FailOpen",
        description="What an inference gateway does without it; any gateway pod can take any request.",
    )
    allowed_from: Annotated[tuple[PickerPeer, ...], Field(min_length=1, max_length=16)] | None = Field(
        default=None,
        description="Who may connect to port 9002 (NetworkPolicy); left out: pods that carry the label of the proxies "
        "of a Gateway (gateway.networking.k8s.io/gateway-name, or Envoy Gateway's).",
    )
    limits: PickerLimits = Field(default=PickerLimits(), description="Bounds of each pod of our own picker.")


class PoolImages(Strict):
    """Images of a pool's pods; what is left out is the operator's."""

    control: Image | None = Field(default=None, description="Image of scheduler, gateways and endpoint picker.")
    engine: Image | None = Field(default=None, description="Image of the engines, with the pool's backend.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="When nodes pull them."
    )
    pull_secrets: Annotated[tuple[DottedName, ...], Field(max_length=8)] = Field(
        default=(), description="Secrets with credentials of a private registry, in the GpuPool's namespace."
    )


class ServiceAccounts(Strict):
    """ServiceAccounts of the GpuPool's namespace that pods run as; no pod gets its token of the API server."""

    engines: DottedName | None = Field(default=None, description="Of the engines; left out: that of the namespace.")
    gateway: DottedName | None = Field(default=None, description="Of the gateways; left out: that of the namespace.")


class GatewayPods(Strict):
    """The pods that speak the OpenAI API."""

    replicas: Annotated[int, Field(ge=0, le=64)] = Field(default=2, description="How many.")
    endpoint_picker: EndpointPicker | None = Field(
        default=None,
        description="With it, `{}` for example, an InferencePool of the gateway pods is made, for inference gateways "
        "(Gateway API Inference Extension); HTTPRoutes then lead to it.",
    )
    trusted_proxies: Annotated[tuple[Cidr, ...], Field(max_length=16)] = Field(
        default=(),
        description="Networks of proxies in front, for example of a Gateway's pods: their connections are not counted "
        "by address (else 1024 each) and may be idle for as long as proxies keep theirs.",
    )
    cors_origins: Annotated[tuple[_Origin, ...], Field(max_length=64)] = Field(
        default=(),
        description="Origins of web pages whose scripts may use the API from a browser, https://chat.example.com for "
        'example; "*": any. Left out: none.',
    )
    access_log: bool = Field(
        default=False, description="A JSON object on standard output for each request, without prompts and answers."
    )
    strict: bool = Field(
        default=False,
        description="Requests are refused where they name what has no effect, instead of answered with a header that "
        "says it.",
    )
    tokenizer_memory: PositiveQuantity = Field(
        default=TOKENIZER_BYTES,
        description="Most memory that the tokenizers in one gateway may take. Those used longest ago make room for "
        "others, and are loaded again when they are asked for.",
    )


class ParentRef(Strict):
    """A Gateway."""

    name: DottedName = Field(description="Name of the Gateway.")
    namespace: ObjectName | None = Field(default=None, description="Its namespace; left out: the ModelPool's.")
    section_name: DottedName | None = Field(default=None, description="One of its listeners; left out: all.")


class HeaderMatch(Strict):
    """A header of a request."""

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=_HEADER)] = Field(description="Name.")
    value: Annotated[str, Field(min_length=1, max_length=1024)] = Field(description="Exact value.")


class Access(Strict):
    """How the models are reached. On Kubernetes an HTTPRoute is made when parentRefs names a Gateway."""

    model_config = rules(
        (
            "(has(self.parentRefs) && size(self.parentRefs) > 0) || "
            "!((has(self.hostnames) && size(self.hostnames) > 0) || has(self.pathPrefix) || has(self.header))",
            "hostnames, pathPrefix and header belong to a route; name its Gateway in parentRefs",
        ),
    )

    port: Annotated[int, Field(ge=1, le=65535)] = Field(
        default=8000, description="Port of the OpenAI API under `aegaeon up`; on Kubernetes it is always 8000."
    )
    parent_refs: Annotated[tuple[ParentRef, ...], Field(max_length=8)] = Field(
        default=(), description="Gateways (Gateway API) that lead to the models; left out: no HTTPRoute is made."
    )
    hostnames: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253, pattern=_HOSTNAME)], ...], Field(max_length=16)
    ] = Field(default=(), description="Host names of the route; left out: all that the Gateway has.")
    path_prefix: Annotated[str, Field(min_length=2, max_length=256, pattern=PATH)] | None = Field(
        default=None, description="Path before /v1 that leads to these models, for example /team-a; it is cut off."
    )
    header: HeaderMatch | None = Field(default=None, description="Header that a request must have.")

    @model_validator(mode="after")
    def _route_has_a_gateway(self) -> Self:
        if (self.hostnames or self.path_prefix or self.header) and not self.parent_refs:
            raise ValueError("hostnames, pathPrefix and header belong to a route; name its Gateway in parentRefs")
        return self
