"""Requests to where tenants say their models are: whom they reach, where redirects lead, how long they may take."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import local_servers
import pytest
from sidecar.web import Server, serving

from aegaeon_proto.outbound.client import Client, Outbound
from aegaeon_proto.outbound.errors import GivenUpError, OutboundError, RefusedError, UnreachableError
from aegaeon_proto.outbound.limits import Limits
from aegaeon_proto.outbound.policy import EVERYWHERE, Policy
from aegaeon_proto.outbound.urls import parse

PATIENCE_S = 60.0


def client(*allowed: str, cancelled: Callable[[], bool] = lambda: False, **limits: float) -> Client:
    return Outbound(Policy(allowed or EVERYWHERE), Limits(**limits)).client(cancelled)


def get(asked: Client, url: str, **options: Any) -> bytes:
    with asked.open(url, **options) as answer:
        return answer.read_all(1 << 20)


# ---- names and addresses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0"]
)
def test_no_spelling_of_this_machines_address_reaches_it(web: Server, host: str) -> None:
    port = parse(web.address).port
    with pytest.raises(OutboundError, match=r"loopback address|cannot be resolved"):
        get(Outbound(Policy(())).client(), f"http://{host}:{port}/models/tiny/config.json")
    assert web.tokens == []


def test_a_name_is_resolved_once_and_what_was_checked_is_dialled(web: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server of a tenant may answer differently the second time."""
    port = parse(web.address).port
    answers = iter(["127.0.0.1", "127.0.0.2", "127.0.0.3"])

    def resolve(host: str, *_: object, **__: object) -> list[Any]:
        address = next(answers) if host == "models.example" else host
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert get(client("127.0.0.1"), f"http://models.example:{port}/models/tiny/config.json") == b"{}"
    with pytest.raises(RefusedError, match="is not in the GpuPool's allowedSources"):
        get(client("127.0.0.1"), f"http://models.example:{port}/models/tiny/config.json")


def test_only_those_addresses_of_a_name_are_dialled_that_are_allowed(
    web: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = parse(web.address).port
    real = socket.create_connection
    dialled = []

    def dial(address: tuple[str, int], *rest: Any, **more: Any) -> socket.socket:
        dialled.append(address[0])
        return real(address, *rest, **more)

    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in ("169.254.169.254", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    monkeypatch.setattr(socket, "create_connection", dial)
    with client("127.0.0.0/8").open(f"http://models.example:{port}/models/tiny/config.json") as answer:
        assert answer.status == 200
    assert dialled == ["127.0.0.1"]


# ---- redirects -----------------------------------------------------------------------------------------------------


def test_redirects_on_the_same_host_are_followed_up_to_a_limit(web: Server) -> None:
    web.redirects = {"a": "b", "b": "/models/tiny/config.json", "round": "round"}
    assert get(client("127.0.0.1"), f"{web.address}/a", token="t0ken-of-it") == b"{}"
    assert [token for _, token in web.tokens] == ["Bearer t0ken-of-it"] * 3
    with pytest.raises(RefusedError, match="redirects more than 5 times"):
        get(client("127.0.0.1"), f"{web.address}/round")


def test_the_refusal_names_the_limit_on_redirects(web: Server) -> None:
    web.redirects = {**{f"r{at}": f"r{at + 1}" for at in range(5)}, "r5": "/models/tiny/config.json"}
    assert get(client("127.0.0.1"), f"{web.address}/r1") == b"{}"
    with pytest.raises(RefusedError, match="redirects more than 5 times"):
        get(client("127.0.0.1"), f"{web.address}/r0")


def test_redirects_elsewhere_are_followed_where_the_pool_allows_and_without_the_token(web: Server) -> None:
    with serving() as other:
        web.redirects = {"a": f"{other.address}/config.json?signature=x", "b": "http://169.254.169.254/latest"}
        with pytest.raises(RefusedError, match=r"redirects to 127\.0\.0\.1, which the GpuPool's allowedSources"):
            get(client(f"http://127.0.0.1:{parse(web.address).port}"), f"{web.address}/a")
        assert other.tokens == []
        assert get(client("127.0.0.0/8"), f"{web.address}/a", token="t0ken-of-it") == b"{}"
        assert other.tokens == [("/models/tiny/config.json?signature=x", None)]
        with pytest.raises(RefusedError, match="is not in the GpuPool's allowedSources"):
            get(client("127.0.0.0/8"), f"{web.address}/b")


@pytest.mark.parametrize("location", ["http://[bad", "file:///etc/passwd", "gopher://h/", "http://h:99999/"])
def test_redirects_to_invalid_urls_are_refused(web: Server, location: str) -> None:
    web.redirects = {"a": location}
    with pytest.raises(RefusedError, match="redirects to an invalid URL"):
        get(client(), f"{web.address}/a")


@pytest.mark.parametrize(
    ("location", "followed"),
    [
        ("https://cdn-lfs.hf.co/x?Signature=y", True),
        ("/api/resolve-cache/x", True),
        ("https://evilhf.co/x", False),
        ("https://hf.co.evil.example/x", False),
        ("http://cdn-lfs.hf.co/x", False),
    ],
)
def test_a_source_that_keeps_files_elsewhere_may_send_there_without_a_list(location: str, followed: bool) -> None:
    asked, place = Outbound(Policy(())).client(), parse("https://huggingface.co/a/b/resolve/c/d")
    if followed:
        assert asked._next(place, location, ("hf.co",)).target.startswith("/")
    else:
        with pytest.raises(RefusedError, match="redirects"):
            asked._next(place, location, ("hf.co",))


# ---- answers that do not end ---------------------------------------------------------------------------------------


@contextmanager
def saying(*parts: bytes, repeat: bytes = b"", pause_s: float = 0.0) -> Iterator[str]:
    """A server that sends `parts`, then `repeat` until the client has had enough."""
    over = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            try:
                for part in parts:
                    self.request.sendall(part)
                while repeat and not over.wait(pause_s):
                    self.request.sendall(repeat)
            except OSError:
                pass

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with local_servers.serving(server) as address:
        try:
            yield f"http://{address}/m"
        finally:
            over.set()


HEAD = b"HTTP/1.1 200 OK\r\n"


def all_of(asked: Client, url: str) -> int:
    asked.watch.paced = True
    with asked.open(url) as answer:
        return sum(len(chunk) for chunk in answer.chunks())


def test_slow_headers_end_with_a_sentence() -> None:
    with (
        saying(HEAD, repeat=b"X", pause_s=0.01) as url,
        pytest.raises(UnreachableError, match=r"the beginning of an answer took longer than 0\.5 s"),
    ):
        get(client(answer_s=0.5), url)


def test_slow_bodies_end_with_a_sentence_whatever_frames_them() -> None:
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    for start, repeat in ((HEAD + b"\r\n", b"x"), (chunked, b"1\r\nx\r\n"), (chunked, b"0")):
        with (
            saying(start, repeat=repeat, pause_s=0.01) as url,
            pytest.raises(RefusedError, match=r"bytes per second over .* s; the minimum is 1000000"),
        ):
            all_of(client(min_bytes_per_s=1e6, window_s=0.5), url)


def test_a_small_slow_answer_ends_with_a_sentence() -> None:
    with (
        saying(HEAD + b"\r\n", repeat=b"x", pause_s=0.01) as url,
        pytest.raises(UnreachableError, match=r"the answer took longer than 0\.5 s"),
    ):
        get(client(small_s=0.5), url)


def test_a_server_that_falls_silent_ends_with_a_sentence() -> None:
    with serving() as web:
        web.hanging = "tiny"
        with pytest.raises(UnreachableError, match=r"took longer than 0\.6 s|sent nothing for"):
            all_of(client(answer_s=0.6), f"{web.address}/config.json")


@pytest.mark.parametrize(
    ("start", "repeat"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
        (HEAD, b"X: " + b"y" * 60_000 + b"\r\n"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"e" * 60_000 + b"\r\nx\r\n"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"T: " + b"y" * 60_000 + b"\r\n"),
    ],
    ids=["continue", "headers", "extensions", "trailers"],
)
def test_endless_chunks_are_refused(start: bytes, repeat: bytes) -> None:
    with saying(start, repeat=repeat) as url, pytest.raises(OutboundError):
        all_of(client(), url)


def test_reads_are_bounded_whatever_the_server_declares() -> None:
    for start in (HEAD + b"\r\n", HEAD + b"Content-Length: 9999999999\r\n\r\n"):
        with (
            saying(start, repeat=b"x" * 65536) as url,
            pytest.raises(RefusedError, match="has more than 1048576 bytes"),
        ):
            get(client(), url)


@pytest.mark.parametrize("said", [b"-1", b"1e3", b"9" * 5000, b"\xb2"])
def test_an_invalid_size_is_refused(said: bytes) -> None:
    with (
        saying(HEAD + b"Content-Length: " + said + b"\r\n\r\n") as url,
        pytest.raises(RefusedError, match="an invalid Content-Length"),
    ):
        get(client(), url)


def test_a_truncated_answer_is_refused() -> None:
    with (
        saying(HEAD + b"Content-Length: 9\r\n\r\nx") as url,
        pytest.raises(UnreachableError, match="1 of 9 bytes arrived"),
    ):
        get(client(), url)


@pytest.mark.parametrize("said", [b"", b"\0\xff nonsense\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"SSH-2.0-x\r\n"])
def test_a_non_http_answer_is_reported_in_printable_text(said: bytes) -> None:
    with saying(said) as url, pytest.raises(OutboundError) as raised:
        get(client(), url)
    assert str(raised.value).isprintable()


def test_a_wait_ends_soon_after_it_is_cancelled() -> None:
    wanted = threading.Event()
    raised: list[BaseException] = []

    def ask(url: str) -> None:
        try:
            all_of(client(cancelled=wanted.is_set), url)
        except OutboundError as error:
            raised.append(error)

    with serving() as web:
        web.hanging = "tiny"
        thread = threading.Thread(target=ask, args=(f"{web.address}/config.json",))
        thread.start()
        wanted.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert isinstance(raised[0], GivenUpError)
