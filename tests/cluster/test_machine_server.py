"""HTTP servers of this machine are reached at addresses of either family."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

import pytest
from e2e.chaos.web import serving
from e2e.cluster.layout import url
from e2e.https import JsonHandler, https

BOTH = pytest.mark.parametrize("address", ["127.0.0.1", "::1"])


class _Ready(JsonHandler):
    def do_GET(self) -> None:  # noqa: N802  # http.server's name
        self.answer(200, {"ready": True})


@BOTH
def test_models_are_fetched_from_the_web_server_at_an_address_of_either_family(address: str, tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text("{}")
    with serving(address, tmp_path) as server:
        source = server.source("first", "llama")["http"]["url"]
        with build_opener(ProxyHandler({})).open(f"{source}/config.json", timeout=10) as answer:
            assert answer.read() == b"{}"


@BOTH
def test_an_https_server_answers_at_an_address_of_either_family(address: str, tmp_path: Path) -> None:
    with https(_Ready, address, tmp_path) as port:
        trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        trusted.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does by itself
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=trusted))
        with opener.open(url(address, port, "https"), timeout=10) as answer:
            assert json.load(answer) == {"ready": True}
