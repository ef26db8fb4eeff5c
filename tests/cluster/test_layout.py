"""Addresses of clusters that live side by side, of either family."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from e2e.cluster.layout import CLUSTERS, Layout, Network, authority, url


def _overlap(left: Network, right: Network) -> bool:
    """Whether they have an address in common; of one family, as numbers."""
    return int(left[0]) <= int(right[-1]) and int(right[0]) <= int(left[-1])


@pytest.mark.parametrize("ipv6", [False, True])
def test_no_two_networks_of_a_machine_have_an_address_in_common(ipv6: bool) -> None:
    clusters = [Layout(Path("/nowhere"), number, 2, ipv6) for number in range(CLUSTERS)]
    networks = [network for cluster in clusters for network in (cluster.network, cluster.services, cluster.pods)]
    assert {network.version for network in networks} == {6 if ipv6 else 4}
    assert not [pair for pair in combinations(networks, 2) if _overlap(*pair)]


def test_an_api_server_takes_the_services_and_pods_of_a_node_are_of_its_clusters() -> None:
    layout = Layout(Path("/nowhere"), CLUSTERS - 1, 8, ipv6=True)
    assert layout.services.max_prefixlen - layout.services.prefixlen <= 20
    pods = [node.pods for node in layout.nodes]
    assert len(set(pods)) == 8
    assert all(_overlap(layout.pods, each) for each in pods)
    assert layout.api_url == "https://[fd00:ae:0:f::1]:6443"


@pytest.mark.parametrize(("host", "written"), [("10.0.0.1", "10.0.0.1:80"), ("fd00::1", "[fd00::1]:80")])
def test_an_address_of_ipv6_has_brackets(host: str, written: str) -> None:
    assert authority(host, 80) == written
    assert url(host, 80) == f"http://{written}"
