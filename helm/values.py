"""The values of the chart, from which values.yaml, values.schema.json and the README are generated."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Json = dict[str, Any]
Port = Annotated[int, Field(ge=1, le=65535)]
DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]

# A tag or a digest is optional.
Image = Annotated[str, Field(pattern=r"^[^\s@]+(@sha256:[0-9a-f]{64})?$")]
NamespaceOrAll = Annotated[str, Field(pattern=r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$", max_length=63)]


class Values(BaseModel):
    """A group of values; unknown values are errors."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, validate_by_name=True)


class Images(Values):
    """Images of the operator and of the pods that it creates. They are not published: build them with `make images`."""

    control: Image = Field(
        default="localhost/aegaeon-control",
        description="Image of operator, scheduler and gateway. Without a tag (NAME:1.2) or digest (NAME@sha256:...) it "
        "gets `images.tag`.",
    )
    engine: Image = Field(
        default="localhost/aegaeon-engine", description="Image of engines; named like `images.control`."
    )
    engine_vllm: Image = Field(
        default="localhost/aegaeon-engine-vllm",
        description="Image of engines of GpuPools with `backend: vllm`; named like `images.control`.",
    )
    tag: str = Field(
        default="",
        description="Tag of images without a tag or digest; empty: the chart's appVersion.",
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="Pull policy of the images."
    )
    pull_secrets: list[DnsLabel] = Field(
        default=[], description="Secrets with credentials for a private registry, in the operator's namespace."
    )


class Operator(Values):
    """The Deployment of the operator, which reconciles GpuPools and ModelPools. It is not on the path of requests."""

    replicas: Annotated[int, Field(ge=1, le=5)] = Field(
        default=2, description="Number of replicas: one leader, and standbys."
    )
    watch_namespaces: list[DnsLabel] = Field(
        default=[],
        description="Namespaces to watch; the operator gets permissions only in these. Empty: all, with a ClusterRole.",
    )
    log_level: Literal["debug", "info", "warning"] = Field(default="info", description="Log level.")
    resources: Json = Field(
        default={"requests": {"cpu": "50m", "memory": "192Mi"}, "limits": {"memory": "512Mi"}},
        description="Resource requests and limits of the container.",
    )
    node_selector: dict[str, str] = Field(default={}, description="Node selector of the pods.")
    tolerations: list[Json] = Field(
        default=[], description="Tolerations of the pods. By default they tolerate a lost node for 2 s."
    )
    affinity: Json = Field(default={}, description="Affinity of the pods.")
    priority_class_name: str = Field(default="", description="Priority class of the pods.")
    pod_annotations: dict[str, str] = Field(default={}, description="Annotations of the pods.")


class Crds(Values):
    """The CustomResourceDefinitions."""

    install: bool = Field(
        default=True,
        description="Install and upgrade them with the chart. `helm uninstall` keeps them, and all GpuPools and "
        "ModelPools.",
    )


class DeletionProtection(Values):
    """A ValidatingAdmissionPolicy that refuses to delete a GpuPool while it has ModelPools."""

    enabled: bool = Field(
        default=True,
        description="Install the policy, a cluster-scoped object. It does not apply to a GpuPool with the annotation "
        "`serving.aegaeon.io/allow-deletion: 'true'`, nor to the deletion of a namespace.",
    )


class Admission(Values):
    """A ValidatingAdmissionPolicy that refuses a ModelPool that does not fit its GpuPool, with all problems."""

    enabled: bool = Field(
        default=True,
        description="Install the policy, with cluster-scoped objects. Without it the problems are only in the status "
        "of the ModelPool.",
    )
    action: Literal["Deny", "Warn"] = Field(
        default="Deny",
        description="`Warn`: accept the ModelPool, and let kubectl print the problems; for tools that rename a "
        "ModelPool by creating the new one before they delete the old one.",
    )
    gpu_pool_namespaces: list[DnsLabel] = Field(
        default=[],
        description="Namespaces of GpuPools that are used from other namespaces (allowedNamespaces). GpuPools in a "
        "ModelPool's own namespace are always checked.",
    )


class Redis(Values):
    """The Redis in which all gateways of a pool count quotas. Without it, each gateway counts its own requests."""

    url: Annotated[str, Field(pattern=r"^(rediss?://[^@]+)?$")] = Field(
        default="",
        description="URL of an existing Redis, rediss://HOST:6379/0, without a password, reachable from pods.",
    )
    existing_secret: str = Field(
        default="",
        description="Secret in the release's namespace with its password and CA certificates; the operator copies both "
        "to the pools' namespaces.",
    )
    password_key: str = Field(default="password", description="Entry with the password; empty: no password.")
    ca_key: str = Field(
        default="", description="Entry with CA certificates (PEM) for a rediss:// URL; empty: those of the image."
    )
    bundled: bool = Field(
        default=False,
        description="Run a single Redis with TLS and a password instead of `url`. It stores nothing on disk: a restart "
        "resets the quotas of the current minute.",
    )
    image: str = Field(default="docker.io/library/redis:8-bookworm", description="Image of the bundled Redis.")
    resources: Json = Field(
        default={"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        description="Resource requests and limits of the container.",
    )


class Gateway(Values):
    """The implementation of the Gateway API."""

    provider: Literal["none", "istio"] = Field(
        default="none",
        description="`istio`: create a DestinationRule for each endpoint picker, to accept its self-signed "
        "certificate. Other implementations need only the standard objects.",
    )


class Metrics(Values):
    """Prometheus and Grafana; `monitors` and `rules` need the CRDs of the Prometheus operator."""

    monitors: bool = Field(
        default=False, description="Create PodMonitors of operator, schedulers, gateways, pickers and engines."
    )
    rules: bool = Field(default=False, description="Create a PrometheusRule with alerts.")
    dashboard: bool = Field(default=False, description="Create a ConfigMap with a dashboard for Grafana's sidecar.")
    namespaces: list[NamespaceOrAll] = Field(
        default=["monitoring"],
        description="Namespaces whose pods may scrape the operator and pools; `*` for all. Metrics name models and "
        "tenants.",
    )
    labels: dict[str, str] = Field(
        default={}, description="Labels of monitors and rules, by which your Prometheus selects them."
    )


class NetworkPolicy(Values):
    """NetworkPolicies of the operator, and of the pools' egress; the operator always restricts the pools' ingress."""

    enabled: bool = Field(
        default=True,
        description="Restrict the operator. Ingress: health checks and, from `metrics.namespaces`, metrics. Egress: "
        "API server, DNS and the pools' schedulers.",
    )
    pool_egress: bool = Field(
        default=False,
        description="Restrict the egress of pools' pods to DNS, the pods of their pool, and the destinations in its "
        "manifests (model sources, Redis, traces, batches); for schedulers and pickers also the API server.",
    )
    api_server_ports: Annotated[list[Port], Field(min_length=1)] = Field(
        default=[443, 6443],
        description="Ports of the API server's endpoints (`kubectl get endpointslices kubernetes`), for example 16443 "
        "on MicroK8s.",
    )
    dns_ports: Annotated[list[Port], Field(min_length=1)] = Field(
        default=[53], description="Ports of the cluster's DNS pods, for example 5353 on OpenShift."
    )


class Test(Values):
    """Settings of `helm test`."""

    url: str = Field(
        default="",
        description="URL of a gateway, for example http://POOL-gateway.NAMESPACE:8000. Empty: test only the operator.",
    )
    model: str = Field(default="", description="Model for a test request; empty: the first that the gateway lists.")
    key_secret: str = Field(
        default="", description="Secret in the release's namespace with an API key in entry `key`, if one is required."
    )


class Chart(Values):
    """All values of the chart."""

    images: Images = Field(default=Images(), description=str(Images.__doc__))
    operator: Operator = Field(default=Operator(), description=str(Operator.__doc__))
    crds: Crds = Field(default=Crds(), description=str(Crds.__doc__))
    deletion_protection: DeletionProtection = Field(
        default=DeletionProtection(), description=str(DeletionProtection.__doc__)
    )
    admission: Admission = Field(default=Admission(), description=str(Admission.__doc__))
    security_context: Literal["fixed", "platform"] = Field(
        default="fixed",
        description="`fixed`: all pods, of the operator and of pools, run as user 65532. `platform`: the namespace "
        "assigns the user (OpenShift); this user must be able to write to hostPath folders.",
    )
    redis: Redis = Field(default=Redis(), description=str(Redis.__doc__))
    gateway: Gateway = Field(default=Gateway(), description=str(Gateway.__doc__))
    metrics: Metrics = Field(default=Metrics(), description=str(Metrics.__doc__))
    network_policy: NetworkPolicy = Field(default=NetworkPolicy(), description=str(NetworkPolicy.__doc__))
    test: Test = Field(default=Test(), description=str(Test.__doc__))
    name_override: str = Field(
        default="", max_length=40, description="Prefix of objects' names, in place of the release's name."
    )
