"""The values of the chart, as a person may set them: from here come values.yaml, values.schema.json and the README."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Json = dict[str, Any]
Port = Annotated[int, Field(ge=1, le=65535)]
DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]

# With a tag or a digest of its own, or without.
Image = Annotated[str, Field(pattern=r"^[^\s@]+(@sha256:[0-9a-f]{64})?$")]
NamespaceOrAll = Annotated[str, Field(pattern=r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$", max_length=63)]


class Values(BaseModel):
    """Unknown values are errors."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, validate_by_name=True)


class Images(Values):
    """Images of the operator and of the pods that it makes. None is published: `make images` builds them."""

    control: Image = Field(
        default="localhost/aegaeon-control",
        description="Operator, scheduler and gateway. With a tag (NAME:1.2) or a digest (NAME@sha256:...) it is taken "
        "as it is, else it gets `images.tag`.",
    )
    engine: Image = Field(default="localhost/aegaeon-engine", description="Engines; named like `images.control`.")
    engine_vllm: Image = Field(
        default="localhost/aegaeon-engine-vllm",
        description="Engines of GpuPools with `backend: vllm`; named like `images.control`.",
    )
    tag: str = Field(
        default="",
        description="Tag of those that are given without tag and digest; empty means the chart's appVersion.",
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When nodes pull them."
    )
    pull_secrets: list[DnsLabel] = Field(
        default=[], description="Secrets with credentials of a private registry, in the operator's namespace."
    )


class Operator(Values):
    """The Deployment that turns GpuPools and ModelPools into pods. Tokens do not pass it."""

    replicas: Annotated[int, Field(ge=1, le=5)] = Field(default=2, description="One leads, the others stand by.")
    watch_namespaces: list[DnsLabel] = Field(
        default=[],
        description="Namespaces whose objects it serves; it gets rights in those alone. Empty: all, by a ClusterRole.",
    )
    log_level: Literal["debug", "info", "warning"] = Field(default="info", description="How much it says.")
    resources: Json = Field(
        default={"requests": {"cpu": "50m", "memory": "192Mi"}, "limits": {"memory": "512Mi"}},
        description="As in a container.",
    )
    node_selector: dict[str, str] = Field(default={}, description="As in a pod.")
    tolerations: list[Json] = Field(
        default=[], description="As in a pod. A lost node is tolerated for 2 s unless one of these says for how long."
    )
    affinity: Json = Field(default={}, description="As in a pod.")
    priority_class_name: str = Field(default="", description="As in a pod.")
    pod_annotations: dict[str, str] = Field(default={}, description="Annotations of its pods.")


class Crds(Values):
    """The CustomResourceDefinitions."""

    install: bool = Field(
        default=True,
        description="Install and upgrade them with the chart. They stay when the release is uninstalled, and with them "
        "every GpuPool and ModelPool.",
    )


class DeletionProtection(Values):
    """A ValidatingAdmissionPolicy: a GpuPool that serves models cannot be deleted until its ModelPools are."""

    enabled: bool = Field(
        default=True,
        description="Refuse it, by an object of the cluster. A GpuPool with the annotation "
        "`serving.aegaeon.io/allow-deletion: 'true'` can be deleted all the same, and so can a namespace with all that "
        "is in it.",
    )


class Admission(Values):
    """A ValidatingAdmissionPolicy: a ModelPool that does not fit its GpuPool is refused, with all that is wrong."""

    enabled: bool = Field(
        default=True,
        description="Install it, as objects of the cluster. Without it the same stands in the status of the ModelPool.",
    )
    action: Literal["Deny", "Warn"] = Field(
        default="Deny",
        description="Warn: it is taken, and kubectl prints what is wrong; for tools that create a ModelPool under "
        "another name before they delete the first.",
    )
    gpu_pool_namespaces: list[DnsLabel] = Field(
        default=[],
        description="Namespaces whose GpuPools are used from others (allowedNamespaces); those of a ModelPool's own "
        "namespace are looked at in any case.",
    )


class Redis(Values):
    """Where the gateways of a pool count quotas together. Without one, each gateway counts for itself."""

    url: Annotated[str, Field(pattern=r"^(rediss?://[^@]+)?$")] = Field(
        default="",
        description="Of a Redis that is there: rediss://HOST:6379/0, without a password. The pods of pools reach it.",
    )
    existing_secret: str = Field(
        default="",
        description="Secret in the release's namespace with its password and the authorities of its certificate; the "
        "operator copies both to the pools' namespaces.",
    )
    password_key: str = Field(default="password", description="Entry with the password; empty: it has none.")
    ca_key: str = Field(
        default="", description="Entry with the authorities, PEM, for a rediss:// URL; empty: those of the image."
    )
    bundled: bool = Field(
        default=False,
        description="Run a single Redis with TLS and a password of its own instead. It keeps nothing on disk: when it "
        "starts anew, so do the minutes of quotas.",
    )
    image: str = Field(default="docker.io/library/redis:8-bookworm", description="Image of the bundled one.")
    resources: Json = Field(
        default={"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        description="As in a container.",
    )


class Gateway(Values):
    """Of the Gateway API."""

    provider: Literal["none", "istio"] = Field(
        default="none",
        description="istio: a DestinationRule is made for each endpoint picker, whose certificate signs itself. Others "
        "need nothing beside the standard objects.",
    )


class Metrics(Values):
    """For Prometheus and Grafana; the first two need the Prometheus operator's definitions in the cluster."""

    monitors: bool = Field(
        default=False, description="PodMonitors of the operator, schedulers, gateways, pickers, engines."
    )
    rules: bool = Field(default=False, description="A PrometheusRule with alerts.")
    dashboard: bool = Field(default=False, description="A ConfigMap with a dashboard, found by Grafana's sidecar.")
    namespaces: list[NamespaceOrAll] = Field(
        default=["monitoring"],
        description="Namespaces whose pods may scrape the operator and pools; `*` for all. Metrics name models and "
        "tenants.",
    )
    labels: dict[str, str] = Field(
        default={}, description="Labels by which your Prometheus selects monitors and rules."
    )


class NetworkPolicy(Values):
    """Who may reach the operator, and whom it and pools may reach. (Pools get policies of their own from the operator,
    for ingress always.)"""

    enabled: bool = Field(
        default=True,
        description="Of the operator, allow ingress for health and, from `metrics.namespaces`, for metrics alone, and "
        "egress to API server, DNS and schedulers of pools alone.",
    )
    pool_egress: bool = Field(
        default=False,
        description="Of pools' pods, allow egress to DNS, to the roles of their pool, and to what its manifests name "
        "(sources of models, Redis, traces, batches), and of schedulers and pickers to the API server, alone.",
    )
    api_server_ports: Annotated[list[Port], Field(min_length=1)] = Field(
        default=[443, 6443],
        description="Ports of the API server itself (`kubectl get endpointslices kubernetes`): MicroK8s, for example, "
        "has 16443.",
    )
    dns_ports: Annotated[list[Port], Field(min_length=1)] = Field(
        default=[53], description="Ports of the cluster's DNS pods: OpenShift's have 5353."
    )


class Test(Values):
    """What `helm test` asks."""

    url: str = Field(
        default="",
        description="URL of a gateway, for example http://POOL-gateway.NAMESPACE:8000. Empty: the test looks at the "
        "operator alone.",
    )
    model: str = Field(default="", description="The model to chat with; empty means the first that the gateway lists.")
    key_secret: str = Field(
        default="", description="Secret in the release's namespace that holds an API key under `key`, if one is needed."
    )


class Chart(Values):
    """Everything."""

    images: Images = Field(default=Images(), description=str(Images.__doc__))
    operator: Operator = Field(default=Operator(), description=str(Operator.__doc__))
    crds: Crds = Field(default=Crds(), description=str(Crds.__doc__))
    deletion_protection: DeletionProtection = Field(
        default=DeletionProtection(), description=str(DeletionProtection.__doc__)
    )
    admission: Admission = Field(default=Admission(), description=str(Admission.__doc__))
    security_context: Literal["fixed", "platform"] = Field(
        default="fixed",
        description="`fixed`: all pods, the operator's and pools', run as user 65532. `platform`: as their namespace "
        "says, which gives each a user of its own (OpenShift); that user must be able to write hostPath folders.",
    )
    redis: Redis = Field(default=Redis(), description=str(Redis.__doc__))
    gateway: Gateway = Field(default=Gateway(), description=str(Gateway.__doc__))
    metrics: Metrics = Field(default=Metrics(), description=str(Metrics.__doc__))
    network_policy: NetworkPolicy = Field(default=NetworkPolicy(), description=str(NetworkPolicy.__doc__))
    test: Test = Field(default=Test(), description=str(Test.__doc__))
    name_override: str = Field(
        default="", max_length=40, description="Instead of the release's name in names of objects."
    )
