"""Proxies and certificate authorities for servers outside the pool, chosen as by curl and Go.

A pod takes them from the GpuPool's `egress`, a person's machine from the environment. Peers within the pool are not
affected.
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import quote, unquote, urlsplit

from aegaeon_proto.credentials import proxy_user
from aegaeon_proto.outbound.errors import RefusedError
from aegaeon_proto.outbound.urls import PORTS
from aegaeon_proto.redaction import remember


@dataclass(frozen=True, slots=True)
class Proxy:
    """Prints as HOST:PORT, without the user."""

    host: str
    port: int
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL with user and password, for clients that take no other form."""
        user = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}@" if self.user else ""
        return f"http://{user}{self}"

    @property
    def headers(self) -> dict[str, str]:
        """Proxy-Authorization; nothing without a user."""
        both = b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Proxy-Authorization": f"Basic {both}"} if self.user else {}


@dataclass(frozen=True, slots=True)
class Egress:
    """The route to servers outside of the pool. By default it is direct, and the system's authorities are trusted."""

    https_proxy: str = ""
    """http://HOST:PORT of the proxy for https:// URLs, which it tunnels (CONNECT), and for traces"""
    http_proxy: str = ""
    """the same for http:// URLs"""
    no_proxy: tuple[str, ...] = ()
    """hosts with all below them, addresses and networks, each with a port or without, that are reached directly; `*`:
    all. The loopback interface always is"""
    credentials_file: str = ""
    """USER:PASSWORD for both proxies, read for each connection; empty: none, or what the URL says"""
    ca_file: str = ""
    """certificate authorities in PEM, which are trusted beside the system's"""

    def proxy(self, scheme: str, host: str, port: int) -> Proxy | None:
        """The proxy for a server; None: connect directly. Raises RefusedError and CredentialsError."""
        setting = self.https_proxy if scheme == "https" else self.http_proxy
        if not setting or _is_loopback(host) or any(_matches(entry, host, port) for entry in self.no_proxy):
            return None
        proxy = parse_proxy(setting)
        return Proxy(proxy.host, proxy.port, *proxy_user(self.credentials_file)) if self.credentials_file else proxy

    def proxy_of(self, url: str) -> Proxy | None:
        """The proxy for a URL that was checked; see `proxy`."""
        parts = urlsplit(url)
        return self.proxy(parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme])

    def tls(self) -> ssl.SSLContext:
        """A TLS context for connections to such servers. Raises RefusedError when the file cannot be used."""
        context = as_usual(ssl.create_default_context())
        if self.ca_file:
            try:
                context.load_verify_locations(self.ca_file)
            except OSError as error:  # SSLError is one
                raise RefusedError(f"the certificate authorities in {self.ca_file} cannot be read: {error}") from error
        return context

    def authorities(self) -> bytes | None:
        """The authorities that `tls` trusts, in PEM, for clients with a TLS of their own; None: their defaults."""
        if not self.ca_file:
            return None
        certificates = self.tls().get_ca_certs(binary_form=True)
        return "".join(map(ssl.DER_cert_to_PEM_cert, certificates)).encode()


DIRECT = Egress()


def as_usual(context: ssl.SSLContext) -> ssl.SSLContext:
    """Certificates are verified as by curl, Go and Python up to 3.12. Python 3.13 also refuses those that lack what RFC
    5280 demands, and authorities of companies often lack it, such as the authority key identifier.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def from_environment(environment: Mapping[str, str]) -> Egress:
    """Read the environment as curl does: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY for both, NO_PROXY, each in small letters
    first; and SSL_CERT_FILE. Registers its passwords for redaction."""

    def value(name: str) -> str:
        return environment.get(name.lower()) or environment.get(name) or ""

    every = value("ALL_PROXY")
    https, http = value("HTTPS_PROXY") or every, value("HTTP_PROXY") or every
    remember(password for proxy in (https, http) if (password := _parts(proxy)[1]))
    without = tuple(entry for entry in value("NO_PROXY").replace(",", " ").split())
    return Egress(https, http, without, ca_file=environment.get("SSL_CERT_FILE", ""))


def parse_proxy(text: str) -> Proxy:
    """[http://][USER:PASSWORD@]HOST[:PORT]. Raises RefusedError, which quotes no credentials."""
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        host, port = parts.hostname or "", parts.port or PORTS["http"]
    except ValueError:
        host, port = "", 0
    if parts.scheme != "http" or not host:
        shown = f"{parts.scheme}://{host}"
        raise RefusedError(f"the proxy {shown} cannot be used: it must be http://HOST:PORT, also for https:// URLs")
    return Proxy(host, port, *_parts(text))


def _parts(text: str) -> tuple[str, str]:
    """User and password of a proxy's URL."""
    parts = urlsplit(text if "://" in text else f"http://{text}")
    return unquote(parts.username or ""), unquote(parts.password or "")


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _matches(entry: str, host: str, port: int) -> bool:
    """True when an entry of no_proxy covers this server; an invalid entry covers none."""
    entry = entry.lower()
    if entry == "*":
        return True
    name, _, number = entry.rpartition(":")
    if name and number.isdecimal() and (":" not in name or name.endswith("]")):
        if int(number) != port:
            return False
        entry = name
    entry = entry.strip("[]")
    try:
        address = ip_address(host)
    except ValueError:
        domain = entry.removeprefix("*").removeprefix(".")
        return bool(domain) and (host == domain or host.endswith(f".{domain}"))
    try:
        network = ip_network(entry, strict=False)
    except ValueError:
        return False
    return network.version == address.version and address in network
