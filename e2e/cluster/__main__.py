"""`python -m e2e.cluster up | down | status`: an API server on this machine, as root."""

from __future__ import annotations

import os
import shutil
import sys
import time

import click

from e2e.cluster import binaries, control_plane, network, pki
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout, default_layout
from e2e.cluster.processes import running, stop


@click.group(help=__doc__)
def main() -> None:
    """See the module."""


@main.command()
def up() -> None:
    """Make it, or say that it is there."""
    layout = default_layout()
    if os.geteuid() != 0:
        raise ClusterError("network namespaces need root; or set KUBECONFIG to a cluster that you have")
    if running(layout):
        raise ClusterError("a cluster is up already; `make cluster-down` ends it")
    binaries.build()
    began = time.monotonic()
    try:
        _make(layout)
    except BaseException:
        _end(layout, keep_logs=True)
        raise
    click.echo(f"the API server answers after {time.monotonic() - began:.1f} s\n")
    click.echo(f"export KUBECONFIG={layout.kubeconfig}\nexport PATH={layout.binaries}:$PATH")


@main.command()
def down() -> None:
    """End its processes, remove its namespace and files."""
    _end(default_layout(), keep_logs=False)


@main.command()
def status() -> None:
    """What runs."""
    for process in running(default_layout()):
        click.echo(f"{process.pid:8d}  {process.name}")


def _make(layout: Layout) -> None:
    shutil.rmtree(layout.root, ignore_errors=True)
    layout.root.mkdir(parents=True, mode=0o755)
    pki.make(layout)
    network.make()
    control_plane.start_all(layout)


def _end(layout: Layout, keep_logs: bool) -> None:
    for process in reversed(running(layout)):
        stop(layout, process)
    network.remove()
    for child in layout.root.iterdir() if layout.root.exists() else ():
        if child != layout.logs or not keep_logs:
            shutil.rmtree(child) if child.is_dir() else child.unlink()


if __name__ == "__main__":
    try:
        main(standalone_mode=True)
    except ClusterError as error:
        sys.exit(f"error: {error}")
