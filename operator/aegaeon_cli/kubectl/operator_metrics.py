"""What the operator that leads tells Prometheus, read through a port-forward."""

from __future__ import annotations

import http.client
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from aegaeon_cli.errors import CliError, NoAnswerError, RefusedError
from aegaeon_cli.kubectl.access import Where
from aegaeon_cli.kubectl.forward import connection

_PORT = 9090
_TIMEOUT_S = 10.0
_WATCHED = "aegaeon_operator_watched"


@dataclass(frozen=True, slots=True)
class Scraped:
    """Series of one operator."""

    samples: tuple[Sample, ...]

    def of(self, metric: str, namespace: str | None, *labels: str) -> dict[tuple[str, ...], float]:
        """A metric by namespace, pool and these labels, of a namespace; None: of all."""
        there = (one for one in self.samples if one.name == f"aegaeon_operator_{metric}")
        return {
            tuple(one.labels[name] for name in ("namespace", "pool", *labels)): one.value
            for one in there
            if namespace in (None, one.labels["namespace"])
        }

    @property
    def undefined(self) -> list[str]:
        """Kinds of objects that the operator would watch, if the cluster knew them."""
        return sorted(one.labels["resource"] for one in self.samples if one.name == _WATCHED and not one.value)

    @property
    def leads(self) -> bool:
        """Whether it is the one that knows the pools."""
        return any(one.name == "aegaeon_operator_leads" and one.value for one in self.samples)


def scrape(where: Where, namespace: str, labels: str) -> Scraped:
    """Of the first operator that leads. Raises CliError where none does, or this user may not ask."""
    silent: list[str] = []
    for pod in where.pods(namespace, labels):
        if (node := pod["spec"].get("nodeName")) in where.lost:
            silent.append(f"pod {namespace}/{pod['metadata']['name']} is on node {node}, which is not ready")
            continue
        try:
            found = _read(where, namespace, pod["metadata"]["name"])
        except RefusedError:
            raise
        except CliError as error:  # one that starts, or crashes: another may lead
            silent.append(str(error))
            continue
        if found.leads:
            return found
    raise NoAnswerError("; ".join([f"no operator of namespace {namespace} says that it leads", *silent]))


def _read(where: Where, namespace: str, pod: str) -> Scraped:
    over = http.client.HTTPConnection("localhost", timeout=_TIMEOUT_S)
    over.sock = connection(where.core, namespace, pod, _PORT)
    over.sock.settimeout(_TIMEOUT_S)
    try:
        over.request("GET", "/metrics")
        text = over.getresponse().read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswerError(f"pod {namespace}/{pod} does not answer on port {_PORT}: {error}") from error
    finally:
        over.close()
    families = text_string_to_metric_families(text)
    return Scraped(tuple(sample for family in families for sample in family.samples))
