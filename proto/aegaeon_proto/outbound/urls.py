"""URLs in one form that every part of this project reads alike: ASCII, http or https, without credentials."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from urllib.parse import quote, urljoin

from aegaeon_proto.outbound.errors import RefusedError

PORTS = {"http": 80, "https": 443}
HUB_FILES_HOSTS = ("hf.co", "huggingface.co")
"""where the hub keeps large files, and subdomains: it chooses them, not a tenant"""
# What a manifest may say, and the pattern of the CRD: no userinfo, query or fragment, and nothing beyond ASCII.
SOURCE_PATTERN = r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!$-;=@-Z_a-z~]*)?$"
OPTIONAL_SOURCE_PATTERN = rf"^$|{SOURCE_PATTERN}"
_SOURCE = re.compile(SOURCE_PATTERN)
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>/[^\s#]*|\?[^\s#]*)?(?:#.*)?",
    re.IGNORECASE,
)
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


@dataclass(frozen=True, slots=True)
class Url:
    """`host` is in small letters and without brackets; `target` is path and query, as they are sent."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def server(self) -> tuple[str, str, int]:
        """The server to which credentials for this URL may be sent."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """host:port, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        """The URL for people: without the query, which may be a signature, and without a default port."""
        authority = self.authority.removesuffix(f":{PORTS[self.scheme]}")
        return f"{self.scheme}://{authority}{self.target.partition('?')[0]}"


def parse(text: str) -> Url:
    """Parse a URL. Raises RefusedError, which does not quote a URL that may contain credentials."""
    match = _URL.fullmatch(text) if text.isascii() else None
    if match is None:
        raise RefusedError("is not a URL: it must be http:// or https://, a host and percent-encoded ASCII")
    scheme = match["scheme"].lower()
    port = int(match["port"]) if match["port"] else PORTS[scheme]
    if not 0 < port < 65536:
        raise RefusedError(f"is not a URL: {port} is not a port")
    target = match["target"] or "/"
    host = match["host"].lower().strip("[]").rstrip(".")
    return Url(scheme, host, port, target if target[0] == "/" else "/" + target)


def check_source(text: str) -> str:
    """A source's URL as a manifest gives it, unchanged. Raises RefusedError with a sentence."""
    if not _SOURCE.fullmatch(text):
        raise RefusedError(
            "is not an http:// or https:// address of a folder: a host (its xn-- form beyond ASCII) and a "
            "percent-encoded path, without user, query and fragment; credentials go into credentialsFile or "
            "credentialsSecretRef"
        )
    url = parse(text)
    if ":" in url.host:
        _check_ipv6(url.host)
    elif not all(0 < len(label) < 64 for label in url.host.split(".")):
        raise RefusedError(
            f"is not an address: the host {url.host[:80]!r} has an empty label, or a label of over 63 characters"
        )
    return text


def redirected(url: Url, location: str) -> Url:
    """The URL that an answer redirects to. Raises RefusedError."""
    return parse(urljoin(f"{url.scheme}://{url.authority}{url.target}", quote(location, safe=_PRINTABLE)))


def _check_ipv6(host: str) -> None:
    try:
        IPv6Address(host)
    except ValueError:
        raise RefusedError("is not an address: the text in brackets is not an IPv6 address") from None
