"""A cluster as the user of a kubeconfig may see it. Errors of the client become sentences here, and nowhere else."""

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
    """A cluster, and the namespace that is meant; None: all of them. `lost`: nodes known not to answer, so that no port
    of their pods is waited for."""

    api: client.ApiClient
    namespace: str | None
    lost: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        """For sentences."""
        return f"namespace {self.namespace}" if self.namespace else "the cluster"

    @property
    def core(self) -> client.CoreV1Api:
        """Pods, their logs and ports."""
        return client.CoreV1Api(self.api)

    def pools(self, plural: str) -> list[Json]:
        """GpuPools or ModelPools. Raises CliError."""
        custom, what = client.CustomObjectsApi(self.api), f"{plural} of {self.namespace or 'all namespaces'}"
        if self.namespace is None:
            found = self.json(what, custom.list_cluster_custom_object, _GROUP, _VERSION, plural)
        else:
            found = self.json(what, custom.list_namespaced_custom_object, _GROUP, _VERSION, self.namespace, plural)
        items: list[Json] = found["items"]
        return items

    def pods(self, namespace: str, labels: str) -> list[Json]:
        """As JSON has them. Raises CliError."""
        found = self.json(f"pods of {namespace}", self.core.list_namespaced_pod, namespace, label_selector=labels)
        items: list[Json] = found["items"]
        return items

    def json(self, what: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Json:
        """What a call of the client answers, as JSON has it. Raises CliError, naming `what`."""
        with client_errors(what):
            found = call(*arguments, **options, _request_timeout=_TIMEOUT)
        answer: Json = self.api.sanitize_for_serialization(found)
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

    found = with_cluster
    for decorate in (
        click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="In all namespaces."),
        click.option("-n", "--namespace", metavar="NAME", help="Instead of the context's."),
        click.option("--context", metavar="NAME", help="Of the kubeconfig, instead of its current one."),
        click.option("--kubeconfig", metavar="FILE", help="Instead of KUBECONFIG and ~/.kube/config."),
    ):
        found = decorate(found)
    return cast(Command, found)


def output_option(command: Command) -> Command:
    """`-o json`."""
    given = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
    found: Command = given(command)
    return found


def _where(kubeconfig: str | None, context: str | None, namespace: str | None, everywhere: bool) -> Where:
    try:
        name, chosen = _chosen(KubeConfigMerger(kubeconfig or KUBE_CONFIG_DEFAULT_LOCATION).config, context)
        api = _client(kubeconfig, name)
    except (config.ConfigException, OSError, yaml.YAMLError) as error:
        raise CliError(f"the kubeconfig cannot be used: {error}") from error
    except (AttributeError, TypeError, KeyError) as error:  # the client takes the types of its parts for granted
        raise CliError(f"the kubeconfig cannot be used: it is none: {error}") from error
    return Where(api, None if everywhere else namespace or chosen.get("namespace") or "default")


def _client(kubeconfig: str | None, context: str) -> client.ApiClient:
    """Uses the proxies of kubeconfig and environment as kubectl does: never to this machine itself."""
    found = client.Configuration()
    config.load_kube_config(kubeconfig, context=context, client_configuration=found)
    found.no_proxy = ",".join(filter(None, (found.no_proxy, "localhost", "127.0.0.0/8", "::1")))
    return client.ApiClient(found)


def _chosen(merged: Any, context: str | None) -> tuple[str, Json]:
    """The name and the content of the context that is meant: as for kubectl, it need not be the current one, and there
    need not be a current one. Raises CliError."""
    kubeconfig: Json = merged.value if merged else {}  # None: there is no file
    known: dict[str, Json] = {one["name"]: one.value.get("context") or {} for one in kubeconfig.get("contexts") or ()}
    name = context or kubeconfig.get("current-context")
    if not name:
        raise CliError(f"the kubeconfig has no current context; give --context: {', '.join(known) or 'it has none'}")
    if name not in known:
        raise CliError(f"--context {name}: the kubeconfig has no such context; it has {', '.join(known) or 'none'}")
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
