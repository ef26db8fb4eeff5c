"""Which addresses and URLs a tenant's source may name."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from aegaeon_proto.outbound.errors import RefusedError
from aegaeon_proto.outbound.policy import EVERYWHERE, EntryError, Policy, kind_of, parse_entry
from aegaeon_proto.outbound.urls import check_source

# ---- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("93.184.216.34", ""),
        ("2606:2800:220:1::1", ""),
        ("127.0.0.1", "a loopback"),
        ("127.255.0.3", "a loopback"),
        ("0.0.0.0", "a loopback"),
        ("::1", "a loopback"),
        ("::", "a loopback"),
        ("169.254.169.254", "a link-local"),
        ("fe80::1", "a link-local"),
        ("10.1.2.3", "a private"),
        ("172.31.0.1", "a private"),
        ("192.168.0.1", "a private"),
        ("100.64.0.1", "a private"),
        ("fd12::1", "a private"),
        ("224.0.0.1", "a multicast"),
        ("ff02::1", "a multicast"),
        ("240.0.0.1", "a reserved"),
        ("0.1.2.3", "a reserved"),
        ("192.0.2.1", "a reserved"),
        ("fec0::1", "a reserved"),
        ("::127.0.0.1", "a reserved"),
        ("::ffff:127.0.0.1", "a loopback"),
        ("::ffff:169.254.169.254", "a link-local"),
        ("::ffff:10.0.0.1", "a private"),
        ("64:ff9b::a9fe:a9fe", "a link-local"),
        ("2002:7f00:1::", "a loopback"),
        ("2002:0a00:1::", "a private"),
    ],
)
def test_every_kind_of_address_is_known_also_in_another_one(address: str, kind: str) -> None:
    assert kind_of(ip_address(address)) == kind


@pytest.mark.parametrize(
    ("allowed", "host", "address", "words"),
    [
        ((), "models.example", "93.184.216.34", ""),
        ((), "models.example", "10.0.0.1", "is at a private address"),
        ((), "rebound.example", "169.254.169.254", "is at a link-local address"),
        (("models.example",), "models.example", "93.184.216.34", ""),
        (("models.example",), "models.example", "10.0.0.1", ""),
        (("models.example",), "models.example", "127.0.0.1", "is at a loopback address"),
        (("models.example",), "models.example", "169.254.169.254", "is at a link-local address"),
        (("models.example",), "other.example", "93.184.216.34", "is not in the GpuPool's allowedSources"),
        (("*.example",), "a.b.example", "93.184.216.34", ""),
        (("*.example",), "example", "93.184.216.34", "is not in"),
        (("*.example",), "badexample", "93.184.216.34", "is not in"),
        (("*.example",), "a.example", "10.0.0.1", "is at a private address"),
        (("*",), "a.example", "93.184.216.34", ""),
        (("*",), "a.example", "127.0.0.1", "is at a loopback address"),
        (("10.0.0.0/8",), "a.example", "10.2.3.4", ""),
        (("10.0.0.0/8",), "a.example", "::ffff:10.2.3.4", ""),
        (("10.0.0.0/8",), "a.example", "93.184.216.34", "is not in"),
        (("127.0.0.1",), "localhost", "127.0.0.1", ""),
        (("http://models.example",), "models.example", "93.184.216.34", "is not in"),
        (("https://models.example:443",), "models.example", "93.184.216.34", ""),
        (("models.example:8443",), "models.example", "93.184.216.34", "is not in"),
        (("fd00::/8", "[fe80::1]:443"), "a.example", "fe80::1", ""),
        (EVERYWHERE, "a.example", "::1", ""),
    ],
)
def test_the_allow_list_applies_to_name_and_address(
    allowed: tuple[str, ...], host: str, address: str, words: str
) -> None:
    objection = Policy(allowed).objection("https", host, 443, ip_address(address))
    assert words in objection if words else objection == ""


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "ftp://a",
        "a b",
        "a/b",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "*.",
        "a.*.b",
        "a:0",
        "a:99999",
        "ü",
        "300.1.1.1",
        "[::1",
    ],
)
def test_an_invalid_entry_of_a_list_is_refused(entry: str) -> None:
    with pytest.raises(EntryError, match="is neither a host"):
        parse_entry(entry)


# ---- URLs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "https://h.example:8443/a/b%20c",
        "http://[fd00::1]:80/m",
        "https://xn--bcher-kva.example/m",
        "http://under_score/m",
        "http://10.0.0.1/~me/(1)",
    ],
)
def test_urls_of_folders_are_accepted_unchanged(url: str) -> None:
    assert check_source(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://[bad/m1",
        "http://[::g]/m",
        "http://[::1/m",
        "http://h:99999/m",
        "http://h:0/m",
        "http://h:x/m",
        "http://bücher.example/m",
        "http://h/ü",
        "http://h/a b",
        "http://h/a\r\nX: y",
        "http://h/a\n",
        "http://user:secret-word@h/m",
        "http://h/m?key=secret-word",
        "http://h/m#f",
        "http:///m",
        "http://a..b/m",
        f"http://{'a' * 64}.example/m",
        "ftp://h/m",
        "file:///etc/passwd",
        "HTTP//h",
        "",
    ],
)
def test_invalid_urls_and_those_with_secrets_are_refused_without_quoting_them(url: str) -> None:
    with pytest.raises(RefusedError) as raised:
        check_source(url)
    assert "secret-word" not in str(raised.value)
