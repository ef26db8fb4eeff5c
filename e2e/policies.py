"""NetworkPolicies enforced by the kernel, without a network plugin: each pod is a network namespace of this machine,
with the policies that select it as nftables rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from e2e.cluster.network import inside
from e2e.cluster.processes import run

Json = dict[str, Any]
_DIRECTIONS = {"Egress": ("output", "to", "daddr", "oif"), "Ingress": ("input", "from", "saddr", "iif")}
# Says that it listens, then takes every connection and answers every datagram.
_LISTEN = """
import socket, sys, threading
def udp(to):
    while True:
        data, peer = to.recvfrom(64)
        to.sendto(data, peer)
def tcp(to):
    while True:
        to.accept()[0].close()
for port in map(int, sys.argv[1:]):
    for kind, serve in ((socket.SOCK_STREAM, tcp), (socket.SOCK_DGRAM, udp)):
        to = socket.socket(socket.AF_INET, kind)
        to.bind(("", port))
        kind is socket.SOCK_STREAM and to.listen()
        threading.Thread(target=serve, args=(to,), daemon=True).start()
print("listening", flush=True)
sys.stdin.read()
"""
_REACH = """
import asyncio, json, sys
async def reached(address, port):
    try:
        async with asyncio.timeout(5):
            _, writer = await asyncio.open_connection(address, port)
            writer.close()
            return [[address, port]]
    except (OSError, TimeoutError):
        return []
async def main():
    targets = json.loads(sys.argv[1])
    found = await asyncio.gather(*(reached(*target) for target in targets))
    print(json.dumps(sum(found, [])))
asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A pod, or what is no pod (`namespace` empty), at an address."""

    name: str
    address: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def netns(self) -> str:
        return _netns(self.name)


def _netns(name: str) -> str:
    """Of this process: several may test on one machine."""
    return f"aegaeon-{os.getpid()}-{name}"


def ruleset(place: Place, policies: Sequence[Json], places: Sequence[Place]) -> str:
    """Of a place's namespace. What no policy selects may all; else what is not allowed is reset at once."""
    mine = [
        one
        for one in policies
        if one["metadata"]["namespace"] == place.namespace and _selects(one["spec"]["podSelector"], place.labels)
    ]
    chains = "".join(_chain(direction, mine, places) for direction in _DIRECTIONS)
    return f"table ip policies {{\n{chains}}}\n"


def _chain(direction: str, policies: Sequence[Json], places: Sequence[Place]) -> str:
    hook, end, _, device = _DIRECTIONS[direction]
    there = [one for one in policies if direction in one["spec"]["policyTypes"]]
    if not there:
        return ""
    lines = [f'{device} "lo" accept', "ct state established,related accept", "tcp flags & rst == rst accept"]
    for one in there:
        for rule in one["spec"].get(direction.lower(), ()):
            lines += _allowed(direction, rule, rule.get(end), one["metadata"]["namespace"], places)
    lines += ["meta l4proto tcp reject with tcp reset", "drop"]
    body = "".join(f"    {line}\n" for line in lines)
    return f"  chain {hook} {{\n    type filter hook {hook} priority 0; policy accept;\n{body}  }}\n"


def _allowed(
    direction: str, rule: Json, peers: Sequence[Json] | None, namespace: str, places: Sequence[Place]
) -> Iterator[str]:
    side = _DIRECTIONS[direction][2]
    matches = [""] if peers is None else [match for peer in peers for match in _peer(side, peer, namespace, places)]
    ports = [f"{one.get('protocol', 'TCP').lower()} dport {one['port']}" for one in rule.get("ports", ())] or [""]
    for match in matches:
        for port in ports:
            yield f"{match} {port} accept".strip()


def _peer(side: str, peer: Json, namespace: str, places: Sequence[Place]) -> Iterator[str]:
    if block := peer.get("ipBlock"):
        if ":" not in block["cidr"]:
            left_out = ", ".join(block.get("except", ()))
            yield f"ip {side} {block['cidr']}" + (f" ip {side} != {{ {left_out} }}" if left_out else "")
        return
    for one in places:
        if one.namespace and _is_peer(peer, one, namespace):
            yield f"ip {side} {one.address}"


def _is_peer(peer: Json, place: Place, namespace: str) -> bool:
    there = {"kubernetes.io/metadata.name": place.namespace}
    within = _selects(peer["namespaceSelector"], there) if "namespaceSelector" in peer else place.namespace == namespace
    return within and _selects(peer.get("podSelector", {}), place.labels)


def _selects(selector: Json, labels: Mapping[str, str]) -> bool:
    fits = {"In": lambda one: labels.get(one["key"]) in one["values"], "Exists": lambda one: one["key"] in labels}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        fits[one["operator"]](one) for one in selector.get("matchExpressions", ())
    )


@contextmanager
def enforced(places: Sequence[Place], policies: Sequence[Json], ports: Sequence[int]) -> Iterator[None]:
    """All places on one network, each with its rules and with a server on every port."""
    switch = _netns("switch")
    with ExitStack() as stack:
        run("ip", "netns", "add", switch)
        stack.callback(run, "ip", "netns", "delete", switch)
        run("ip", "-netns", switch, "link", "add", "name", "b0", "type", "bridge")
        run("ip", "-netns", switch, "link", "set", "b0", "up")
        for number, place in enumerate(places):
            _join(place, switch, f"p{number}", stack)
            run(*inside(place.netns), "nft", "-f", "-", stdin=ruleset(place, policies, places))
            stack.enter_context(_listening(place, ports))
        yield


def _join(place: Place, switch: str, link: str, stack: ExitStack) -> None:
    run("ip", "netns", "add", place.netns)
    stack.callback(run, "ip", "netns", "delete", place.netns)
    run("ip", "-netns", switch, *f"link add {link} type veth peer name eth0 netns {place.netns}".split())
    run("ip", "-netns", switch, *f"link set {link} master b0 up".split())
    for words in ("link set lo up", "link set eth0 up", f"address add {place.address}/32 dev eth0"):
        run("ip", "-netns", place.netns, *words.split())
    run("ip", "-netns", place.netns, *["route", "add", "default", "dev", "eth0"])


@contextmanager
def _listening(place: Place, ports: Sequence[int]) -> Iterator[None]:
    command = (*inside(place.netns), sys.executable, "-S", "-c", _LISTEN, *map(str, ports))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdout
        assert server.stdin
        assert server.stdout.readline() == "listening\n"
        yield
        server.stdin.close()


def reached(place: Place, places: Sequence[Place], ports: Sequence[int]) -> set[tuple[str, int]]:
    """Names of the other places, and their ports, to which a connection can be made from this one."""
    others = {one.address: one.name for one in places if one != place}
    targets = [[address, port] for address in others for port in ports]
    said = run(*inside(place.netns), sys.executable, "-S", "-c", _REACH, json.dumps(targets))
    return {(others[address], port) for address, port in json.loads(said)}
