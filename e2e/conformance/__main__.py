"""`python -m e2e.conformance`: GIE's suite on Istio, with our picker or GIE's, on the cluster of `make cluster-up`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from e2e import istio
from e2e.balancer import load_balancer
from e2e.cluster import binaries
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout, default_layout
from e2e.cluster.node import ctr
from e2e.conformance import manifests, pickers, results
from e2e.kubectl import REPOSITORY, kubectl

_LIMIT = "40m"
# What a report of the suite must contain about its author.
_ABOUT = {"organization": "aegaeon", "project": "aegaeon", "version": "0", "url": "http://localhost", "contact": "none"}
_TRUST = """
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{host: {host}, trafficPolicy: {{tls: {{mode: SIMPLE, insecureSkipVerify: true}}}}}}
---
"""


@click.command(help=__doc__)
@click.option("--picker", type=click.Choice(["aegaeon", "reference"]), default="aegaeon", show_default=True)
@click.option("--test", help="The short name of one test, instead of all.")
def main(picker: pickers.Picker, test: str | None) -> None:
    """See the module."""
    layout = _cluster()
    log = REPOSITORY / "build" / "conformance" / f"{picker}.log"
    named = manifests.read()
    with ExitStack() as stack:
        click.echo("Istio, pickers and servers are made ready", err=True)
        stack.enter_context(istio.installed(layout.kubeconfig, layout))
        stack.enter_context(_pickers(layout, named, picker))
        stack.enter_context(load_balancer(layout.kubeconfig, named.namespaces))
        click.echo(f"the suite runs; {log} has every word of it", err=True)
        said = _run(layout, log, picker, test)
        found = results.read(said)
        click.echo("\n".join([*said.splitlines()[-3:], "", *results.summary(found)]))
    if problems := results.problems(found):
        raise ClusterError("; ".join(problems))


def _cluster() -> Layout:
    """Raises ClusterError where images cannot be put onto nodes."""
    layout = default_layout()
    if os.environ.get("KUBECONFIG", str(layout.kubeconfig)) != str(layout.kubeconfig) or not layout.nodes:
        raise ClusterError(
            "needs a cluster of `make cluster-up` with nodes, and not that of KUBECONFIG: images are put onto its nodes"
        )
    return layout


@contextmanager
def _pickers(layout: Layout, named: manifests.Named, picker: pickers.Picker) -> Iterator[None]:
    """What the suite's manifests take for granted; all that the suite made goes at the end, too."""
    kubeconfig = layout.kubeconfig
    pickers.load(layout, named, picker)
    hosts = enumerate(named.pickers)
    rules = [_TRUST.format(name=f"picker-{n}", namespace=istio.NAMESPACE, host=host) for n, host in hosts]
    try:
        kubectl(kubeconfig, "apply", "-f", "-", stdin="".join(rules))
        if picker == "reference":
            pickers.prepare_reference(kubeconfig, named.pickers[0].split(".")[1])
        yield
    finally:
        kubectl(kubeconfig, "delete", "namespace", *named.namespaces, "--ignore-not-found", "--timeout=300s")
        if picker == "reference":
            pickers.forget_reference(kubeconfig)
        for node in layout.nodes:
            ctr(node, "images", "rm", named.picker_image, named.echo_image)


def _run(layout: Layout, log: Path, picker: pickers.Picker, test: str | None) -> str:
    """All that it said; its exit status says no more than that."""
    words = ["-test.v", f"-test.timeout={_LIMIT}", "-test.run=TestConformance", f"-gateway-class={istio.GATEWAY_CLASS}"]
    words += ["-cleanup-base-resources=false", *(f"-{key}={value}" for key, value in _ABOUT.items())]
    words += [f"-run-test={test}"] if test else []
    words += ["-allow-crds-mismatch"] if picker == "reference" else []  # it brings kinds of its own version
    suite = layout.binaries / binaries.CONFORMANCE[0]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        environment = {**os.environ, "KUBECONFIG": str(layout.kubeconfig)}
        subprocess.run([suite, *words], env=environment, stdout=out, stderr=out, check=False)
    return log.read_text("utf-8", "replace")


if __name__ == "__main__":
    try:
        main(standalone_mode=True)
    except ClusterError as error:
        sys.exit(f"error: {error}")
