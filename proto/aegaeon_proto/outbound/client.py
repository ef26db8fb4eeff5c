"""The HTTP client for sources of models: it checks the policy, follows few redirects, and limits bytes and time.

http.client frames the messages. A proxy is used only where the platform says so (egress.py), netrc never.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse

from aegaeon_proto.outbound.connection import GuardedSocket, connect, refused_by, through
from aegaeon_proto.outbound.egress import DIRECT, Egress, Proxy
from aegaeon_proto.outbound.errors import OutboundError, RefusedError, UnreachableError
from aegaeon_proto.outbound.limits import Limits, Watch
from aegaeon_proto.outbound.policy import Policy
from aegaeon_proto.outbound.urls import Url, parse, redirected
from aegaeon_proto.redaction import sentence

CHUNK_BYTES = 256 << 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5


class Answer:
    """One answer, read once and then closed. Raises only OutboundError."""

    def __init__(self, url: Url, response: HTTPResponse, sock: GuardedSocket, watch: Watch) -> None:
        self.url = url
        self.status = response.status
        self.headers: HTTPMessage = response.headers
        self._response = response
        self._sock = sock
        self._watch = watch
        self._came_bytes = 0
        self.nbytes = _length(self.headers.get("Content-Length"))
        """the Content-Length; -1 without one"""

    def part(self, most: int = CHUNK_BYTES) -> bytes:
        """The next bytes; b"" at the end."""
        with _errors(self.url):
            chunk = self._response.read1(most)
            self._came_bytes += len(chunk)
            self._sock.overhead.body_bytes = self._came_bytes
            if not chunk and 0 <= self._came_bytes < self.nbytes and not self._response.chunked:
                raise UnreachableError(f"{self._came_bytes} of {self.nbytes} bytes arrived")
            return chunk

    def chunks(self) -> Iterator[bytes]:
        """All bytes, at the least rate of the limits."""
        while chunk := self.part():
            yield chunk

    def read_all(self, most_bytes: int) -> bytes:
        """Read all bytes at once. Raises RefusedError when there are too many, UnreachableError when they take too
        long."""
        content = bytearray()
        with self._watch.within(self._watch.limits.small_s, "the answer"):
            while chunk := self.part(min(most_bytes + 1 - len(content), CHUNK_BYTES)):
                content += chunk
                if len(content) > most_bytes:
                    raise RefusedError(f"{self.url}: has more than {most_bytes} bytes, the limit for it")
        return bytes(content)

    def close(self) -> None:
        try:
            self._response.close()
        finally:
            self._sock.release()


@dataclass(frozen=True)
class Outbound:
    """Shared settings of all fetches of a process. `ambient`: use tokens and folders of the environment."""

    policy: Policy
    limits: Limits = field(default_factory=Limits)
    ambient: bool = False
    egress: Egress = DIRECT

    def client(self, cancelled: Callable[[], bool] = lambda: False) -> Client:
        """A client for one fetch."""
        return Client(self, Watch(self.limits, cancelled))


class Client:
    """Requests of one fetch, one after the other. `watch` knows how long they have taken together."""

    def __init__(self, outbound: Outbound, watch: Watch) -> None:
        self._outbound = outbound
        self._tls: ssl.SSLContext | None = None
        self.watch = watch

    @contextmanager
    def open(
        self, url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, token: str = "",
        hosts: tuple[str, ...] = (),
    ) -> Iterator[Answer]:  # fmt: skip
        """The answer, redirects followed: on the same host, to what the policy's list names and, where that is empty,
        to `hosts` and those below them. The token goes to the server of `url` alone. Raises OutboundError."""
        place = first = parse(url)
        for _ in range(_MOST_REDIRECTS + 1):
            sent = dict(headers or {})
            if token and place.server == first.server:
                sent["Authorization"] = f"Bearer {token}"
            answer = self.send(place, method, sent)
            try:
                if answer.status not in _REDIRECTS or "Location" not in answer.headers:
                    yield answer
                    return
                place = self._next(place, str(answer.headers["Location"]), hosts)
            finally:
                answer.close()
        raise RefusedError(f"{first}: redirects more than {_MOST_REDIRECTS} times")

    def send(self, url: Url, method: str, headers: Mapping[str, str | bytes]) -> Answer:
        """One request, no redirects; the answer is the caller's to close. Raises OutboundError."""
        with _errors(url), self.watch.within(self.watch.limits.answer_s, "the beginning of an answer"):
            proxy = self._outbound.egress.proxy(url.scheme, url.host, url.port)
            made, sock = self._connected(url, proxy)
            plain = proxy if url.scheme == "http" else None  # it reads the request itself; else it sees a tunnel
            target = f"http://{url.authority}{url.target}" if plain else url.target
            more = {**plain.headers, "Host": url.authority} if plain else {}
            try:
                made.request(method, target, headers={"Accept-Encoding": "identity", **headers, **more})
                response = made.getresponse()
                if plain and response.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
                    raise refused_by(plain, response.status)
                return Answer(url, response, sock, self.watch)
            except BaseException:
                sock.release()
                raise

    def _connected(self, url: Url, proxy: Proxy | None) -> tuple[HTTPConnection, GuardedSocket]:
        began_s, unused = time.monotonic(), ExitStack()
        with unused:
            try:
                made = self._connect(url, proxy)
                unused.callback(made[1].release)
            finally:
                self.watch.waited(time.monotonic() - began_s, 0)  # which may raise: it took too long
            unused.pop_all()
        return made

    def _connect(self, url: Url, proxy: Proxy | None) -> tuple[HTTPConnection, GuardedSocket]:
        outbound = self._outbound
        self._tls = self._tls or outbound.egress.tls()  # of one fetch: authorities are renewed while a process runs
        if proxy is None:
            return connect(url, outbound.policy, self.watch, self._tls)
        return through(proxy, url, outbound.policy, self.watch, self._tls)

    def _next(self, place: Url, location: str, hosts: tuple[str, ...]) -> Url:
        try:
            target = redirected(place, location)
        except (OutboundError, ValueError):
            raise RefusedError(f"{place}: redirects to an invalid URL") from None
        if place.scheme == "https" and target.scheme != "https":
            raise RefusedError(f"{place}: redirects from https to http, which is not followed")
        upgraded = (place.scheme, place.port, target.scheme, target.port) == ("http", 80, "https", 443)
        if target.host == place.host and (target.port == place.port or upgraded):
            return target
        if self._outbound.policy.names(target.scheme, target.host, target.port):
            return target
        if any(target.host == host or target.host.endswith(f".{host}") for host in hosts):
            return target  # the list, if any, is checked when the address is dialled
        raise RefusedError(f"{place}: redirects to {target.host}, which the GpuPool's allowedSources does not name")


def _length(text: str | None) -> int:
    if text is None:
        return -1
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise RefusedError("the server sends an invalid Content-Length")
    return int(text)


@contextmanager
def _errors(url: Url) -> Iterator[None]:
    """Convert errors of sockets, TLS and http.client to this package's, with the URL and without possible secrets."""
    try:
        yield
    except OutboundError as error:
        message = str(error)
        raise error if message.startswith(str(url)) else type(error)(f"{url}: {message}") from None
    except ssl.SSLCertVerificationError as error:
        raise RefusedError(f"{url}: its certificate is not valid: {error.verify_message}") from error
    except (OSError, HTTPException) as error:
        raise UnreachableError(f"{url}: {sentence(error)}") from error
    except ValueError as error:  # http.client's of headers and targets that it does not send
        raise RefusedError(f"{url}: {sentence(error)}") from error
