"""A cluster as the user of a kubeconfig sees it. Wraps all errors of the Kubernetes client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import click
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION, KubeConfigMerger
from urllib3.exceptions import HTTPError

from aegaeon_cli.errors import CliError, NoAnswerError, RefusedError

Json = dict[str, Any]
Command = TypeVar("Command", bound=Callable[..., Any])
_GROUP, _VERSION = "serving.aegaeon.io", "v1alpha1"
_NOT_FOUND, _FORBIDDEN = 404, 403
_TIMEOUT = (5, 30)  # seconds to connect, and until the next byte


@dataclass(frozen=True, slots=True)
class Where:
    """A cluster and a namespace; None: all namespaces. `lost`: nodes that are not ready; ports of their pods are not
    tried."""

    api: client.ApiClient
    namespace: str | None
    lost: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        """The namespace or cluster, for messages."""
        return f"namespace {self.namespace}" if self.namespace else "the cluster"

    @property
    def core(self) -> client.CoreV1Api:
        """Pods, their logs and ports."""
        return client.CoreV1Api(self.api)

    def pools(self, plural: str) -> list[Json]:
        """GpuPools or ModelPools. Raises CliError."""
        custom, what = client.CustomObjectsApi(self.api), f"{plural} of {self.namespace or 'all namespaces'}"
        if self.namespace is None:
            listing = self.json(what, custom.list_cluster_custom_object, _GROUP, _VERSION, plural)
        else:
            listing = self.json(what, custom.list_namespaced_custom_object, _GROUP, _VERSION, self.namespace, plural)
        items: list[Json] = listing["items"]
        return items

    def pods(self, namespace: str, labels: str) -> list[Json]:
        """List pods, as JSON. Raises CliError."""
        listing = self.json(f"pods of {namespace}", self.core.list_namespaced_pod, namespace, label_selector=labels)
        items: list[Json] = listing["items"]
        return items

    def json(self, what: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Json:
        """Call the Kubernetes client; returns the answer as JSON. Raises CliError, naming `what`."""
        with client_errors(what):
            response = call(*arguments, **options, _request_timeout=_TIMEOUT)
        answer: Json = self.api.sanitize_for_serialization(response)
        return answer


class NotThereError(CliError):
    """The API server knows no such object."""


def cluster_options(command: Command) -> Command:
    """The options by which kubectl chooses a cluster and a namespace. The command gets `where` instead of them."""

    @wraps(command)
    def with_cluster(
        *, kubeconfig: str | None, context: str | None, namespace: str | None, everywhere: bool, **rest: Any
    ) -> Any:
        return command(where=_where(kubeconfig, context, None if everywhere else namespace, everywhere), **rest)

    decorated = with_cluster
    for decorate in (
        click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces."),
        click.option("-n", "--namespace", metavar="NAME", help="Namespace.  [default: that of the context]"),
        click.option("--context", metavar="NAME", help="Context of the kubeconfig.  [default: its current context]"),
        click.option(
            "--kubeconfig", metavar="FILE", help="Path of the kubeconfig.  [default: $KUBECONFIG, then ~/.kube/config]"
        ),
    ):
        decorated = decorate(decorated)
    return cast(Command, decorated)


def output_option(command: Command) -> Command:
    """Add the option `-o json`."""
    option = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
    decorated: Command = option(command)
    return decorated


def _where(kubeconfig: str | None, context: str | None, namespace: str | None, everywhere: bool) -> Where:
    try:
        name, chosen = _chosen(KubeConfigMerger(kubeconfig or KUBE_CONFIG_DEFAULT_LOCATION).config, context)
        api = _client(kubeconfig, name)
    except (config.ConfigException, OSError, yaml.YAMLError) as error:
        raise CliError(f"the kubeconfig cannot be used: {error}") from error
    except (AttributeError, TypeError, KeyError) as error:  # the client takes the types of its parts for granted
        raise CliError(f"the kubeconfig cannot be used: it has not the form of a kubeconfig: {error}") from error
    return Where(api, None if everywhere else namespace or chosen.get("namespace") or "default")


def _client(kubeconfig: str | None, context: str) -> client.ApiClient:
    """Make a client that uses the proxies of kubeconfig and environment as kubectl does, but never for loopback
    addresses."""
    configuration = client.Configuration()
    config.load_kube_config(kubeconfig, context=context, client_configuration=configuration)
    configuration.no_proxy = ",".join(filter(None, (configuration.no_proxy, "localhost", "127.0.0.0/8", "::1")))
    return client.ApiClient(configuration)


def _chosen(merged: Any, context: str | None) -> tuple[str, Json]:
    """The name and content of the selected context. As with kubectl, it need not be the current one, and a kubeconfig
    may have no current one. Raises CliError."""
    kubeconfig: Json = merged.value if merged else {}  # None: there is no file
    known: dict[str, Json] = {
        entry["name"]: entry.value.get("context") or {} for entry in kubeconfig.get("contexts") or ()
    }
    name = context or kubeconfig.get("current-context")
    if not name:
        names = ", ".join(known) or "the kubeconfig defines no context"
        raise CliError(f"the kubeconfig has no current context; pass --context NAME: {names}")
    if name not in known:
        raise CliError(f"--context {name}: not in the kubeconfig, which defines {', '.join(known) or 'no context'}")
    return name, known[name]


@contextmanager
def client_errors(what: str) -> Iterator[None]:
    """Raises NotThereError, RefusedError or NoAnswerError for errors of the client."""
    try:
        yield
    except ApiException as error:
        if error.status == _NOT_FOUND:
            raise NotThereError(f"{what}: not found; is Aegaeon installed in this cluster?") from error
        if not error.status:
            raise NoAnswerError(f"{what}: the API server does not answer: {error.reason}") from error
        kind = RefusedError if error.status == _FORBIDDEN else CliError
        raise kind(f"{what}: {_message(error)}") from error
    except (HTTPError, OSError) as error:
        raise NoAnswerError(f"{what}: the API server does not answer: {error}") from error


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason or error.status)
