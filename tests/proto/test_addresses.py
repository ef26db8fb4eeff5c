"""A name that was resolved once stays reachable while DNS is unavailable."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from aegaeon_proto import addresses
from aegaeon_proto.addresses import Addresses

TARGET = "pool-scheduler.prod.svc:50051"


class Names:
    """The resolver's answer; None: it is unavailable."""

    def __init__(self) -> None:
        self.family, self.addresses = socket.AF_INET, ["10.96.0.7"]
        self.answers = True

    def getaddrinfo(self, name: str, port: str, **_: Any) -> list[Any]:
        if not self.answers:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        name.encode("idna")
        return [(self.family, socket.SOCK_STREAM, 6, "", (address, int(port))) for address in self.addresses]


class AtOnce:
    """A thread that is over when it was started."""

    def __init__(self, target: Callable[..., None], args: tuple[str, ...], daemon: bool) -> None:
        assert daemon
        self.start = lambda: target(*args)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    made = Names()
    monkeypatch.setattr(addresses.socket, "getaddrinfo", made.getaddrinfo)
    monkeypatch.setattr(addresses.threading, "Thread", AtOnce)
    return made


def test_the_last_address_of_a_name_is_used_while_dns_is_unavailable(names: Names) -> None:
    known = Addresses()
    assert known.of(TARGET) == "ipv4:10.96.0.7:50051"
    names.answers = False
    assert known.of(TARGET) == "ipv4:10.96.0.7:50051"
    names.answers, names.addresses = True, ["10.96.0.8"]
    assert known.of(TARGET) == "ipv4:10.96.0.8:50051"
    names.family, names.addresses = socket.AF_INET6, ["fd00::7"]
    assert known.of(TARGET) == "ipv6:[fd00::7]:50051"


def test_a_name_with_several_addresses_is_left_to_grpc_which_tries_each(names: Names) -> None:
    known = Addresses()
    known.of(TARGET)
    names.addresses = ["10.0.0.1", "10.0.0.2"]
    known.of(TARGET)
    assert known.of(TARGET) == TARGET


def test_a_name_that_cannot_be_asked_for_is_left_to_grpc(names: Names) -> None:
    target = f"{'a' * 64}.prod:50051"
    assert Addresses().of(target) == target


def test_a_name_that_was_never_resolved_is_left_to_grpc(names: Names) -> None:
    names.answers = False
    assert Addresses().of(TARGET) == TARGET


@pytest.mark.parametrize(
    "target",
    ["unix:/run/scheduler.sock", "unix:///run/s", "127.0.0.1:50051", "[::1]:50051", "dns:///a:1", "ipv4:10.0.0.1:1"],
)
def test_literal_addresses_are_dialled_unchanged(names: Names, target: str) -> None:
    assert Addresses().of(target) == target
