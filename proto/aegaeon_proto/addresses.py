"""Cache the last address of each name in gRPC targets, for when DNS does not answer.

The cluster's DNS may have run on the node that was lost with the peer.
"""

from __future__ import annotations

import logging
import re
import socket
import threading

_NAME_AND_PORT = re.compile(r"(?P<name>[\w.-]*[A-Za-z_][\w.-]*):(?P<port>\d+)")
_FORMS = {socket.AF_INET: "ipv4:{}:{}", socket.AF_INET6: "ipv6:[{}]:{}"}
_log = logging.getLogger(__name__)


class Addresses:
    """Addresses cached for the life of the process; each use of a name resolves it again in the background."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._asked: set[str] = set()

    def of(self, target: str) -> str:
        """The address to dial: `target` itself until its name is resolved, and always when it is not NAME:PORT."""
        named = _NAME_AND_PORT.fullmatch(target)
        if named and target not in self._asked:
            self._asked.add(target)
            # A daemon thread: where DNS is silent it takes most of a minute, also at shutdown.
            threading.Thread(target=self._ask, args=(target, named["name"], named["port"]), daemon=True).start()
        return self._known.get(target, target)

    def _ask(self, target: str, name: str, port: str) -> None:
        try:
            addresses = {
                _FORMS[family].format(*address[:2])
                for family, *_, address in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            }
            self._remember(target, addresses)
        except (OSError, UnicodeError) as error:  # Unicode: a label that is too long, and no answer either
            _log.debug("%s: %s; taken to be as before: %s", name, error, self._known.get(target, "unknown"))
        finally:
            self._asked.discard(target)

    def _remember(self, target: str, addresses: set[str]) -> None:
        """Store a single address, as Services have. With several gRPC tries each, which it only does for names."""
        if len(addresses) == 1:
            self._known[target] = addresses.pop()
        else:
            self._known.pop(target, None)
