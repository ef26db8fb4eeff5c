"""The parts of both kinds that apply to Kubernetes only: pods, routes, scaling.

`kubectl explain` prints the descriptions.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic.config import JsonDict

from aegaeon_operator.spec.base import PATH, DottedName, ObjectName, PositiveDuration, PositiveQuantity, Strict
from aegaeon_operator.spec.cel import field_rules, rules

TOKENIZER_BYTES = 2 << 30
"""Default memory of a gateway's tokenizers (MOST_TOKENIZER_BYTES in the gateway)."""
QUALIFIED = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
AMOUNT = r"^[0-9]{1,15}(\.[0-9]{1,9})?(m|[EPTGMK]i|[kMGTPE])?$"
_HOSTNAME = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_ORIGIN = r"^(\*|https?://[A-Za-z0-9.\-]+(:[0-9]{1,5})?)$"
_HEADER = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"

_NAMESPACE = r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$"
_CIDR = r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"
_CIDR_MESSAGE = "must be a network such as 10.0.0.0/8 or fd00::/8, without bits beyond its prefix"

QualifiedName = Annotated[str, Field(min_length=1, max_length=253, pattern=QUALIFIED)]
NamespaceOrAll = Annotated[str, Field(min_length=1, max_length=63, pattern=_NAMESPACE)]
Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:/@]*$")]
_Origin = Annotated[str, Field(min_length=1, max_length=253, pattern=_ORIGIN)]
_Text = Annotated[str, Field(max_length=1024)]
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)]


def _amount(value: object) -> object:
    """Accept numbers, as pods do: `cpu: 2` is a number in YAML."""
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
        raise ValueError(_CIDR_MESSAGE) from None
    return value


Cidr = Annotated[
    str,
    Field(
        min_length=1,
        max_length=49,
        pattern=_CIDR,
        json_schema_extra=field_rules(("isCIDR(self) && cidr(self) == cidr(self).masked()", _CIDR_MESSAGE)),
    ),
    AfterValidator(_network),
]
Amounts = Annotated[dict[str, Annotated[_Amount, WithJsonSchema(_AMOUNT_SCHEMA | _AMOUNT_RULE)]], Field(max_length=16)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=64)]
Annotations = Annotated[dict[str, _Text], Field(max_length=64)]


class Autoscaling(Strict):
    """Conditions for adding and removing engines, between `min` and `max` of their role."""

    queue_wait: PositiveDuration = Field(
        default=10.0, description="Add an engine when a request has waited for this time."
    )
    kv_usage: Annotated[int, Field(ge=1, le=100)] = Field(
        default=90, description="Add an engine when this percentage of the memory for KV cache stays in use."
    )
    idle: PositiveDuration = Field(
        default=300.0,
        description="Drain and remove an engine after this time without waiting requests and with fewer sequences than "
        "engines.",
    )


class PickerService(Strict):
    """A Service that implements Envoy's ext_proc and picks the gateway pod for a request."""

    name: ObjectName = Field(description="Name of the Service, in the GpuPool's namespace.")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(default=9002, description="Its gRPC port.")


_ONE_PEER = "set either cidr, or at least one of namespace and podLabels"


class PickerPeer(Strict):
    """Pods or external addresses that may connect to the picker."""

    model_config = rules(
        (
            "has(self.cidr) != (has(self.__namespace__) || (has(self.podLabels) && size(self.podLabels) > 0))",
            _ONE_PEER,
        ),
    )

    namespace: ObjectName | None = Field(default=None, description="Namespace of the pods; default: any.")
    pod_labels: Labels = Field(default={}, description="Labels of the pods; default: all pods of the namespace.")
    cidr: Cidr | None = Field(
        default=None, description="Addresses of a gateway outside of the cluster, for example 10.0.0.0/8."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.cidr is not None) == bool(self.namespace or self.pod_labels):
            raise ValueError(_ONE_PEER)
        return self


class PickerLimits(Strict):
    """Limits of each picker pod, for all its peers together and for each peer."""

    connections: Annotated[int, Field(ge=1, le=65536)] = Field(
        default=512, description="Maximum number of connections."
    )
    connections_per_address: Annotated[int, Field(ge=1, le=65536)] = Field(
        default=128,
        description="Maximum number of connections from one address; an Envoy has one or more for each worker thread.",
    )
    streams: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        default=16384, description="Maximum number of open requests."
    )
    streams_per_connection: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        default=1024,
        description="Maximum number of open requests on one connection; above it an Envoy opens another connection.",
    )
    buffered_mib: Annotated[int, Field(ge=1, le=65536)] = Field(
        default=128, description="Maximum MiB of incomplete messages and of unread responses."
    )


class EndpointPicker(Strict):
    """The endpoint picker, which picks the gateway pod for a request of an inference gateway."""

    replicas: Annotated[int, Field(ge=0, le=8)] = Field(
        default=1, description="Number of picker pods, reached as Service NAME-picker on port 9002."
    )
    service: PickerService | None = Field(
        default=None, description="An external picker; the operator then creates no picker pods of its own."
    )
    failure_mode: Literal["FailOpen", "FailClose"] = Field(
        default="FailOpen",
        description="Behaviour of an inference gateway that cannot reach the picker: FailOpen sends the request to any "
        "gateway pod, which can answer it; FailClose refuses it.",
    )
    allowed_from: Annotated[tuple[PickerPeer, ...], Field(min_length=1, max_length=16)] | None = Field(
        default=None,
        description="Peers that may connect to port 9002 (NetworkPolicy). Default: pods with the label of a Gateway's "
        "proxies (gateway.networking.k8s.io/gateway-name, or Envoy Gateway's).",
    )
    limits: PickerLimits = Field(default=PickerLimits(), description="Limits of each picker pod.")


class PoolImages(Strict):
    """Images of a pool's pods; the defaults are the operator's."""

    control: Image | None = Field(default=None, description="Image of scheduler, gateways and endpoint picker.")
    engine: Image | None = Field(default=None, description="Image of the engines, with the pool's backend.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="Pull policy of these images."
    )
    pull_secrets: Annotated[tuple[DottedName, ...], Field(max_length=8)] = Field(
        default=(), description="Secrets with credentials for a private registry, in the GpuPool's namespace."
    )


class ServiceAccounts(Strict):
    """ServiceAccounts of the pods, in the GpuPool's namespace; their API tokens are not mounted."""

    engines: DottedName | None = Field(
        default=None, description="ServiceAccount of the engines; default: the namespace's."
    )
    gateway: DottedName | None = Field(
        default=None, description="ServiceAccount of the gateways; default: the namespace's."
    )


class GatewayPods(Strict):
    """The gateway pods, which serve the OpenAI API."""

    replicas: Annotated[int, Field(ge=0, le=64)] = Field(default=2, description="Number of gateway pods.")
    endpoint_picker: EndpointPicker | None = Field(
        default=None,
        description="If set, for example to `{}`: create an InferencePool of the gateway pods, for inference gateways "
        "(Gateway API Inference Extension), and make it the backend of the HTTPRoutes.",
    )
    trusted_proxies: Annotated[tuple[Cidr, ...], Field(max_length=16)] = Field(
        default=(),
        description="Networks of proxies in front of the gateways, for example of a Gateway's pods. The limit of 1024 "
        "connections per address does not apply to them, and their idle connections stay open longer.",
    )
    cors_origins: Annotated[tuple[_Origin, ...], Field(max_length=64)] = Field(
        default=(),
        description="Origins whose web pages may call the API from a browser (CORS), for example "
        'https://chat.example.com; "*": any. Default: none.',
    )
    access_log: bool = Field(
        default=False,
        description="Log each request as a JSON object on standard output, without prompts and responses.",
    )
    strict: bool = Field(
        default=False,
        description="Refuse requests with parameters that have no effect, instead of answering them with a header that "
        "lists these parameters.",
    )
    tokenizer_memory: PositiveQuantity = Field(
        default=TOKENIZER_BYTES,
        description="Maximum memory of the tokenizers in one gateway. The least recently used ones are unloaded, and "
        "loaded again on the next request.",
    )


class ParentRef(Strict):
    """A Gateway."""

    name: DottedName = Field(description="Name of the Gateway.")
    namespace: ObjectName | None = Field(default=None, description="Its namespace; default: the ModelPool's.")
    section_name: DottedName | None = Field(default=None, description="Name of a listener; default: all listeners.")


class HeaderMatch(Strict):
    """A header that a request must have."""

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=_HEADER)] = Field(
        description="Name of the header."
    )
    value: Annotated[str, Field(min_length=1, max_length=1024)] = Field(description="Exact value of the header.")


class Access(Strict):
    """Access to the models. On Kubernetes the operator creates an HTTPRoute if parentRefs names a Gateway."""

    model_config = rules(
        (
            "(has(self.parentRefs) && size(self.parentRefs) > 0) || "
            "!((has(self.hostnames) && size(self.hostnames) > 0) || has(self.pathPrefix) || has(self.header))",
            "hostnames, pathPrefix and header need parentRefs; name the Gateway of the route there",
        ),
    )

    port: Annotated[int, Field(ge=1, le=65535)] = Field(
        default=8000, description="Port of the OpenAI API under `aegaeon up`; on Kubernetes it is always 8000."
    )
    parent_refs: Annotated[tuple[ParentRef, ...], Field(max_length=8)] = Field(
        default=(), description="Gateways (Gateway API) for the HTTPRoute; default: no HTTPRoute."
    )
    hostnames: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253, pattern=_HOSTNAME)], ...], Field(max_length=16)
    ] = Field(default=(), description="Host names of the route; default: all host names of the Gateway.")
    path_prefix: Annotated[str, Field(min_length=2, max_length=256, pattern=PATH)] | None = Field(
        default=None, description="Path before /v1 for these models, for example /team-a; the route removes it."
    )
    header: HeaderMatch | None = Field(default=None, description="Header that a request must have.")

    @model_validator(mode="after")
    def _route_has_a_gateway(self) -> Self:
        if (self.hostnames or self.path_prefix or self.header) and not self.parent_refs:
            raise ValueError("hostnames, pathPrefix and header need parentRefs; name the Gateway of the route there")
        return self
