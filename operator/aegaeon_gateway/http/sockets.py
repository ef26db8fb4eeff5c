"""Options and states of clients' TCP sockets."""

from __future__ import annotations

import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address

_TCP_CLOSE = 7  # the kernel's state of a connection that the other side has reset
_UNSENT_BYTES = 128 << 10  # the kernel keeps for a reader; it would take up to 4 MiB before it reports a slow reader
OPTIONS = (
    (socket.TCP_KEEPIDLE, 60),
    (socket.TCP_KEEPINTVL, 15),
    (socket.TCP_KEEPCNT, 4),
    (socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES),
)


def was_reset(connected: socket.socket) -> bool:
    """True when the other side has reset the connection."""
    return connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE


def network_of(address: IPv4Address | IPv6Address) -> str:
    """An IPv4 address, or the /64 that one IPv6 client has. asyncio's IPv6 listeners take no IPv4 clients."""
    if isinstance(address, IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))
