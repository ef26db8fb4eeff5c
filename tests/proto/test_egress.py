"""The way out of a network that has a proxy: which servers it is for, and a real one with sources behind it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path

import dead_proxy
import grpc
import pytest
from otlp_receiver import otlp_receiver
from pool_certificates import mount, named
from real_proxy import PASSWORD, USER, RealProxy, real_proxy, through_proxy
from sidecar.web import FILES, Server, outbound, serving

from aegaeon_operator.pki import Pair, make_authority
from aegaeon_proto.outbound.client import Outbound
from aegaeon_proto.outbound.egress import Egress, from_environment, parse_proxy
from aegaeon_proto.outbound.errors import RefusedError, UnreachableError
from aegaeon_proto.outbound.policy import EVERYWHERE, Policy
from aegaeon_proto.redaction import redact
from aegaeon_proto.tracing import Tracing, TracingSettings

NOW = datetime.now(UTC)


def get(egress: Egress, address: str) -> bytes:
    """A file of a model, as engines and gateways fetch it."""
    with outbound(egress=egress).client().open(f"{address}/config.json") as answer:
        assert answer.status == 200
        return answer.read_all(1 << 20)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[RealProxy]:
    with real_proxy(tmp_path) as made:
        yield made


# ---- for which servers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "host", "direct"),
    [
        ("example.com", "example.com", True),
        ("example.com", "models.example.com", True),
        ("example.com", "notexample.com", False),
        (".example.com", "models.example.com", True),
        ("*.example.com", "models.example.com", True),
        ("EXAMPLE.com", "example.com", True),
        ("example.com:443", "example.com", True),
        ("example.com:8443", "example.com", False),
        ("svc", "store.models.svc", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3:443", "10.1.2.3", True),
        ("fd00::/8", "fd00::1", True),
        ("fd00::1", "fd00::1", True),
        ("[fd00::1]:443", "fd00::1", True),
        ("10.0.0.0/99", "10.1.2.3", False),
        ("*", "example.com", True),
        ("", "example.com", False),
        (dead_proxy.DEAD, "127.example", False),
    ],
)
def test_entries_of_no_proxy_mean_what_they_mean_to_curl_and_go(entry: str, host: str, direct: bool) -> None:
    egress = Egress("http://proxy:3128", no_proxy=(entry,))
    assert (egress.proxy("https", host, 443) is None) == direct


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_the_loopback_interface_is_always_reached_directly(host: str) -> None:
    assert Egress("http://proxy", "http://proxy").proxy("http", host, 80) is None


def test_the_environment_is_read_as_curl_reads_it() -> None:
    small = {"https_proxy": "http://small:1", "HTTPS_PROXY": "http://large:2", "NO_PROXY": "a.example, b.example c"}
    assert from_environment(small) == Egress("http://small:1", no_proxy=("a.example", "b.example", "c"))
    assert from_environment({"ALL_PROXY": "proxy:1", "HTTP_PROXY": "other:2"}) == Egress("proxy:1", "other:2")
    assert from_environment({"SSL_CERT_FILE": "/ca.pem"}) == Egress(ca_file="/ca.pem")
    assert from_environment({}) == Egress()


def test_a_password_of_the_environment_is_in_no_message() -> None:
    egress = from_environment({"HTTPS_PROXY": "http://alice:s3cret%2Fword@proxy.example:3128"})
    proxy = egress.proxy("https", "hub.example", 443)
    assert proxy is not None
    assert (str(proxy), proxy.user, proxy.password) == ("proxy.example:3128", "alice", "s3cret/word")
    assert "s3cret" not in redact(f"{proxy.url} cannot be reached: {proxy.password}")


@pytest.mark.parametrize(
    "text", ["socks5://a:secret@proxy:1080", "https://a:secret@proxy", "http://:80", "http://a:0x"]
)
def test_what_is_no_http_proxy_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(RefusedError, match="it must be http://HOST:PORT") as refused:
        parse_proxy(text)
    assert "secret" not in str(refused.value)


# ---- a real one ----------------------------------------------------------------------------------------------------


def test_a_source_is_fetched_through_a_proxy(web: Server, proxy: RealProxy) -> None:
    address = through_proxy(web.address)
    assert get(Egress(http_proxy=proxy.url), address) == FILES["config.json"]
    assert proxy.asked("GET", address)


@pytest.fixture(scope="module")
def authority() -> Pair:
    return make_authority("company", NOW)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python 3.13 asks of certificates by default."""
    usual = ssl.create_default_context

    def contexts() -> ssl.SSLContext:
        context = usual()
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", contexts)


@pytest.fixture
def secure(tmp_path: Path, authority: Pair, strict: None) -> Iterator[tuple[Server, Path]]:
    """A server with a certificate of the company's own authority, without its key identifier, and its file."""
    folder = mount(tmp_path / "tls", authority, named(authority, NOW, IPv4Address("0.0.0.0")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "..data" / "tls.crt", folder / "..data" / "tls.key")
    with serving(context) as server:
        yield server, folder / "..data" / "ca.crt"


def test_tls_is_tunnelled_and_an_authority_of_the_companys_is_trusted(
    secure: tuple[Server, Path], proxy: RealProxy
) -> None:
    server, ca = secure
    address = through_proxy(server.address)
    with pytest.raises(RefusedError, match="its certificate is not valid"):
        get(Egress(proxy.url), address)
    assert get(Egress(proxy.url, ca_file=str(ca)), address) == FILES["config.json"]
    assert proxy.asked("CONNECT", "0.0.0.0")
    assert not proxy.asked("GET", "0.0.0.0")


def test_a_proxy_that_wants_credentials_gets_those_of_the_file(
    web: Server, secure: tuple[Server, Path], tmp_path: Path
) -> None:
    file, (server, ca) = tmp_path / "user", secure
    with real_proxy(tmp_path, guarded=True) as proxy:
        anonymous = Egress(proxy.url, proxy.url, ca_file=str(ca))
        user = replace(anonymous, credentials_file=str(file))
        for address in map(through_proxy, (web.address, server.address)):
            file.write_text(f"{USER}:{PASSWORD}\n")
            assert get(user, address) == FILES["config.json"]
            with pytest.raises(RefusedError, match=r"the proxy 127\.0\.0\.1:\d+ answers 407; check its credentials"):
                get(anonymous, address)
        file.write_text(f"{USER}:wrong-horse\n")
        with pytest.raises(RefusedError, match="answers 401; check its credentials") as refused:
            get(user, through_proxy(server.address))
        assert "horse" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_does_not_answer_is_named_without_its_password(scheme: str) -> None:
    dead = "http://alice:battery@127.0.0.1:9"
    with pytest.raises(UnreachableError, match=r"the proxy 127\.0\.0\.1:9 cannot be reached") as unreachable:
        get(Egress(dead, dead), f"{scheme}://models.example")
    assert "battery" not in str(unreachable.value)


def test_what_no_proxy_names_is_reached_without_it(web: Server) -> None:
    egress = Egress(dead_proxy.DEAD, dead_proxy.DEAD, ("0.0.0.0/8",))
    assert get(egress, through_proxy(web.address)) == FILES["config.json"]


def test_the_list_of_allowed_sources_holds_through_a_proxy(proxy: RealProxy) -> None:
    client = Outbound(Policy(("models.example",)), egress=Egress(proxy.url, proxy.url)).client()
    with (
        pytest.raises(RefusedError, match="is not in the GpuPool's allowedSources"),
        client.open("http://other.example"),
    ):
        pass
    assert not proxy.asked("GET", "other.example")


@pytest.mark.parametrize("allowed", [(), EVERYWHERE, ("models.example",), ("*",)])
def test_a_name_that_the_proxy_resolves_may_be_at_any_public_address(allowed: tuple[str, ...]) -> None:
    """As `aegaeon up` allows it, whose list are the networks of all addresses."""
    client = Outbound(Policy(allowed), egress=Egress(dead_proxy.DEAD, dead_proxy.DEAD)).client()
    with pytest.raises(UnreachableError, match="cannot be reached"), client.open("https://models.example"):
        pass


# ---- traces --------------------------------------------------------------------------------------------------------


async def send(endpoint: str, egress: Egress) -> None:
    """A span named `one`."""
    tracing = Tracing(TracingSettings(endpoint, egress=egress), "tests", "0")
    tracing.tracer.start_span("one").end()
    await tracing.close()


async def test_traces_pass_through_a_proxy(proxy: RealProxy) -> None:
    async with otlp_receiver() as receiver:
        await send(through_proxy(receiver.endpoint), Egress(http_proxy=proxy.url))
        assert receiver.one("one")
    assert proxy.asked("CONNECT", f"0.0.0.0:{receiver.port}")


async def test_traces_over_tls_trust_the_companys_authority_behind_a_proxy_with_credentials(
    tmp_path: Path, authority: Pair
) -> None:
    pair, file = named(authority, NOW, IPv4Address("0.0.0.0")), tmp_path / "user"
    ca = mount(tmp_path / "tls", authority, pair) / "..data" / "ca.crt"
    file.write_text(f"{USER}:{PASSWORD}")
    with real_proxy(tmp_path, guarded=True) as proxy:
        async with otlp_receiver(grpc.ssl_server_credentials([(pair.key, pair.certificate)])) as receiver:
            way = Egress(proxy.url, credentials_file=str(file), ca_file=str(ca))
            await send(through_proxy(receiver.endpoint), way)
            assert receiver.one("one")
        assert proxy.asked("CONNECT", f"0.0.0.0:{receiver.port}")


async def test_traces_do_not_ask_the_environment_for_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    dead_proxy.use(monkeypatch)
    async with otlp_receiver() as receiver:
        await send(receiver.endpoint, Egress())
        assert receiver.one("one")
