"""Metrics of the leading operator, read through a port-forward."""

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
    """The metrics of one operator."""

    samples: tuple[Sample, ...]

    def of(self, metric: str, namespace: str | None, *labels: str) -> dict[tuple[str, ...], float]:
        """A metric by namespace, pool and these labels, of one namespace; None: of all."""
        matching = (sample for sample in self.samples if sample.name == f"aegaeon_operator_{metric}")
        return {
            tuple(sample.labels[name] for name in ("namespace", "pool", *labels)): sample.value
            for sample in matching
            if namespace in (None, sample.labels["namespace"])
        }

    @property
    def undefined(self) -> list[str]:
        """Kinds of objects that the operator would watch if the cluster defined them."""
        return sorted(
            sample.labels["resource"] for sample in self.samples if sample.name == _WATCHED and not sample.value
        )

    @property
    def leads(self) -> bool:
        """True for the elected operator, the only one with metrics of pools."""
        return any(sample.name == "aegaeon_operator_leads" and sample.value for sample in self.samples)


def scrape(where: Where, namespace: str, labels: str) -> Scraped:
    """Scrape the first operator that leads. Raises CliError when none does, or the user has no permission."""
    silent: list[str] = []
    for pod in where.pods(namespace, labels):
        if (node := pod["spec"].get("nodeName")) in where.lost:
            silent.append(f"pod {namespace}/{pod['metadata']['name']} is on node {node}, which is not ready")
            continue
        try:
            scraped = _read(where, namespace, pod["metadata"]["name"])
        except RefusedError:
            raise
        except CliError as error:  # this operator is starting or crashing: another may lead
            silent.append(str(error))
            continue
        if scraped.leads:
            return scraped
    raise NoAnswerError("; ".join([f"no operator of namespace {namespace} reports that it leads", *silent]))


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
