"""The servers that tenants' sources may reach: `allowedSources` of a GpuPool, checked on the dialled address.

An empty list allows any public address. Else the host must be on it. A host (`models.internal`, `http://store:9000`)
may be at a private address, as the author of the list vouches for it; a host of `*` or `*.example.com` may not. A
network (`10.0.0.0/8`) admits hosts that resolve into it; loopback, link-local and similar addresses are only admitted
by a network.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?"
# Hosts, IPv4 addresses and networks, IPv6 ones: what a pattern can say of entries. `parse_entry` knows the rest.
ENTRY_PATTERN = (
    rf"^((https?://)?(([*]|([*][.])?{_LABEL}([.]{_LABEL})*)|[0-9.]+/[0-9]{{1,2}}|\[[0-9A-Fa-f:.]+\])(:[0-9]{{1,5}})?"
    r"|[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(/[0-9]{1,3})?)$"
)
EVERYWHERE = ("0.0.0.0/0", "::/0")
_HOST = re.compile(rf"\*|(\*\.)?{_LABEL}(\.{_LABEL})*")
_ENTRY = re.compile(r"(?:(https?)://)?(\[[^\]]*\]|[^\[\]]*?)(?::([0-9]{1,5}))?", re.IGNORECASE)
_NAT64 = ip_network("64:ff9b::/96")
_UNICAST6 = ip_network("2000::/3")  # what is neither in it nor known below is nothing to reach
_PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")))
PRIVATE = "a private"


class EntryError(ValueError):
    """An invalid entry of allowedSources."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The servers that one entry admits; "" and None: any scheme, any port. Either `host` or `network` is set."""

    scheme: str
    host: str
    network: Network | None
    port: int | None

    @property
    def is_exact(self) -> bool:
        """True when the entry names a single host."""
        return bool(self.host) and "*" not in self.host

    def fits(self, scheme: str, port: int) -> bool:
        """True when scheme and port match."""
        return (self.scheme or scheme) == scheme and (self.port or port) == port

    def admits(self, scheme: str, host: str, port: int, address: Address | None) -> bool:
        """True when the entry admits this server."""
        if not self.fits(scheme, port):
            return False
        if self.network is not None and address is None:  # a proxy resolves the name
            return self.network.prefixlen == 0
        if self.network is not None and address is not None:
            return any(_within(form, self.network) for form in (address, _inner(address)))
        if self.host.startswith("*."):
            return host.endswith(self.host[1:])
        return self.host in ("*", host)


class Policy:
    """Decides on one server at one address."""

    def __init__(self, allowed: Sequence[str]) -> None:
        """Raises EntryError."""
        self._entries = [parse_entry(text) for text in allowed]

    def objection(self, scheme: str, host: str, port: int, address: Address | None) -> str:
        """The reason why this server must not be reached at this address; "" when it may. None: a proxy of the
        platform's resolves it."""
        kind = kind_of(address) if address is not None else ""
        if not self._entries:
            return f"is at {kind} address, and the GpuPool's allowedSources does not name it" if kind else ""
        matching = [entry for entry in self._entries if entry.admits(scheme, host, port, address)]
        if not matching:
            return "is not in the GpuPool's allowedSources"
        named = any(entry.network is not None or (entry.is_exact and kind == PRIVATE) for entry in matching)
        return "" if not kind or named else f"is at {kind} address, which the GpuPool's allowedSources does not name"

    def names(self, scheme: str, host: str, port: int) -> bool:
        """True when an entry could admit this server at some address, so that a redirect may lead to it."""
        return any(
            entry.admits(scheme, host, port, None) or (entry.network is not None and entry.fits(scheme, port))
            for entry in self._entries
        )


def parse_entry(text: str) -> Entry:
    """`[http[s]://]HOST[:PORT]`, where HOST may be `*` or begin with `*.`, or an address or a network in its place.

    Raises EntryError.
    """
    match = _ENTRY.fullmatch(_bracketed(text))
    if match is None or not text.isascii():
        raise EntryError(_wrong(text))
    scheme, place, port = (match[1] or "").lower(), match[2].strip("[]").lower(), match[3]
    if port and not 0 < int(port) < 65536:
        raise EntryError(_wrong(text))
    number = int(port) if port else None
    network = _network(place, text)
    if network is not None:
        return Entry(scheme, "", network, number)
    if not _HOST.fullmatch(place):
        raise EntryError(_wrong(text))
    return Entry(scheme, place, None, number)


def kind_of(address: Address) -> str:
    """The kind of an address that is not public; "" for a public one. Embedded IPv4 addresses count as such."""
    address = _inner(address)
    if address.is_unspecified or address.is_loopback:
        return "a loopback"
    if address.is_link_local:
        return "a link-local"
    if address.is_multicast:
        return "a multicast"
    if any(_within(address, network) for network in _PRIVATE):
        return PRIVATE
    return "" if address.is_global and (address.version == 4 or address in _UNICAST6) else "a reserved"


def parse_address(text: str) -> Address:
    """Parse an address as getaddrinfo returns it: an IPv6 address may have a zone."""
    return ip_address(text.partition("%")[0])


def _inner(address: Address) -> Address:
    """The IPv4 address embedded in an IPv6 address, if any."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or teredo or address


def _within(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _network(place: str, text: str) -> Network | None:
    try:
        return ip_network(place)
    except ValueError:
        if "/" in place or ":" in place or re.fullmatch(r"[0-9.]+", place):
            raise EntryError(_wrong(text)) from None
        return None


def _bracketed(text: str) -> str:
    """A bare IPv6 address or network has colons of its own: brackets keep them from being taken for a port."""
    bare = text.count(":") > 1 and "[" not in text and "://" not in text
    return f"[{text}]" if bare else text


def _wrong(text: str) -> str:
    return (
        f"{text[:80]!r} is neither a host ([http[s]://]HOST[:PORT], with * for all or *. in front for all below) "
        "nor an address or a network such as 10.0.0.0/8"
    )
