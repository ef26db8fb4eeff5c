"""`python -m e2e.cluster prepare | up | env | down | status`: a cluster on this machine, as root."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template

import click

from e2e.cluster import binaries, control_plane, images, network, node, pki, product
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout, Node, default_layout
from e2e.cluster.machine import NAMESPACES, Machine
from e2e.cluster.processes import run, running, stop

# Commands that every cluster needs, those that nodes need, and the Debian packages that bring them.
_NETWORK_TOOLS = {"ip": "iproute2", "nsenter": "util-linux", "sysctl": "procps"}
_NODE_TOOLS = {
    "containerd": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "nft": "nftables",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "socat": "socat",
    "cc": "gcc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
}


@click.group(help=__doc__)
def main() -> None:
    """See the module."""


_nodes = click.option(
    "--nodes", default=2, show_default=True, type=click.IntRange(0, 8), help="0: the API server alone."
)


@main.command()
@_nodes
def prepare(nodes: int) -> None:
    """Build what it and the tests need, or say why this machine cannot make one."""
    layout = default_layout(nodes)
    _check(layout)
    Machine().claim(layout.number, [NAMESPACES])
    try:
        network.make(layout)
    finally:
        network.remove(layout)
        Machine().release(layout.number)
    _build(layout)
    binaries.build(binaries.MONITORING)


@main.command()
@_nodes
@click.option(
    "--images", "with_images", is_flag=True, help="Load the product's images and models; into one that is up."
)
@click.option("--ipv6", is_flag=True, help="Machines, pods and services have addresses of IPv6 alone.")
def up(nodes: int, with_images: bool, ipv6: bool) -> None:
    """Make it."""
    if with_images and not nodes:
        raise ClusterError("images and models are loaded into nodes; take NODES=1 or more with IMAGES=1")
    layout = default_layout()
    if not (with_images and layout.nodes and running(layout)):
        layout = default_layout(nodes, ipv6)
        _make_anew(layout)
    if with_images:
        product.load(layout)
        click.echo("images and models are on the nodes")
    click.echo("\n" + _environment(layout))


@main.command()
def env() -> None:
    """What a shell must know to use it: eval "$(make -s cluster-env)"."""
    click.echo(_environment(default_layout()))


@main.command()
def down() -> None:
    """End its processes, remove its namespaces, mounts and files; the last cluster restores what kubelet set."""
    _end(default_layout(), keep_logs=False)


@main.command()
def status() -> None:
    """What runs."""
    for process in running(default_layout()):
        click.echo(f"{process.pid:8d}  {process.name}")


def _environment(layout: Layout) -> str:
    return f"export KUBECONFIG={layout.kubeconfig}\nexport PATH={layout.binaries}:$PATH"


def _make_anew(layout: Layout) -> None:
    _check(layout)
    _build(layout)
    archives = images.system_images(layout) if layout.nodes else []
    began = time.monotonic()
    try:
        _make(layout, archives, lambda what: click.echo(f"{time.monotonic() - began:5.1f} s  {what}"))
    except BaseException:
        _end(layout, keep_logs=True)
        raise


def _make(layout: Layout, archives: list[Path], say: Callable[[str], None]) -> None:
    shutil.rmtree(layout.root, ignore_errors=True)
    layout.root.mkdir(parents=True, mode=0o755)
    if layout.ipv6:
        layout.mark_of_ipv6.touch()
    Machine().claim(layout.number, [NAMESPACES, *(node.OWN_FOLDERS if layout.nodes else ())])
    pki.make(layout)
    network.make(layout)
    control_plane.start_all(layout)
    say("the API server answers")
    if not layout.nodes:
        return
    with ThreadPoolExecutor(len(layout.nodes)) as pool:
        list(pool.map(lambda one: _make_node(layout, one, archives), layout.nodes))
    system = Template((Path(__file__).parent / "system.yaml").read_text("utf-8")).substitute(dns_ip=layout.dns_ip)
    _kubectl(layout, "apply", "--server-side", "-f", "-", stdin=system)
    names = [f"node/{one.name}" for one in layout.nodes]
    for name in names:
        _kubectl(layout, "wait", "--for=create", name, "--timeout=240s")
    _kubectl(layout, "wait", "--for=condition=Ready", *names, "--timeout=240s")
    say(f"{len(names)} nodes are ready")
    _kubectl(layout, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=240s")
    say("names resolve")


def _make_node(layout: Layout, one: Node, archives: list[Path]) -> None:
    node.start_containerd(layout, one)
    for archive in archives:
        node.ctr(one, "images", "import", str(archive))
    node.start_kubelet(layout, one)


def _kubectl(layout: Layout, *words: str, stdin: str | None = None) -> str:
    return run(str(layout.binaries / "kubectl"), f"--kubeconfig={layout.kubeconfig}", *words, stdin=stdin)


def _end(layout: Layout, keep_logs: bool) -> None:
    for one in layout.nodes:
        node.stop_node(layout, one)
    for process in reversed(running(layout)):
        stop(layout, process)
    network.remove(layout)
    for child in layout.root.iterdir() if layout.root.exists() else ():
        if child != layout.logs or not keep_logs:
            shutil.rmtree(child) if child.is_dir() else child.unlink()
    if not keep_logs:
        shutil.rmtree(layout.root, ignore_errors=True)
    Machine().release(layout.number)


def _check(layout: Layout) -> None:
    """Raises ClusterError for what this machine lacks, and when a cluster is up already."""
    if os.geteuid() != 0:
        raise ClusterError("namespaces need root; or set KUBECONFIG to a cluster that you have")
    if running(layout):
        raise ClusterError("a cluster is up already; `make cluster-down` ends it")
    tools = _NETWORK_TOOLS | (_NODE_TOOLS if layout.nodes else {})
    missing = sorted({package for tool, package in tools.items() if shutil.which(tool) is None})
    if missing:
        raise ClusterError(f"a cluster needs, as root: apt-get install {' '.join(missing)}")


def _build(layout: Layout) -> None:
    binaries.build(binaries.ALL if layout.nodes else binaries.API)


if __name__ == "__main__":
    try:
        main(standalone_mode=True)
    except ClusterError as error:
        sys.exit(f"error: {error}")
