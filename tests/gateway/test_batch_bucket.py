"""Files and batches in a bucket: the way to it is the configuration's, whatever proxies the environment has."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dead_proxy
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from real_proxy import real_proxy, through_proxy
from sidecar.test_s3 import s3  # noqa: F401 - a fixture

from aegaeon_gateway.batches.settings import BatchSettings, Bucket
from aegaeon_gateway.batches.store import open_store
from aegaeon_gateway.errors import UnavailableError
from aegaeon_proto.outbound.egress import Egress


def settings(endpoint: str, folder: Path) -> BatchSettings:
    keys = folder / "keys"
    keys.write_text("[default]\naws_access_key_id = test\naws_secret_access_key = test-secret\n")
    return BatchSettings(s3=Bucket(bucket="models", prefix="night", endpoint=endpoint, credentials_file=str(keys)))


async def test_a_bucket_is_reached_through_the_proxy_of_the_configuration(s3: Any, tmp_path: Path) -> None:  # noqa: F811
    place = through_proxy(s3.meta.endpoint_url)
    with real_proxy(tmp_path) as proxy:
        store = open_store(settings(place, tmp_path), Egress(http_proxy=proxy.url))
        await store.put("a", b"1")
        assert await store.get("a") == b"1"
        assert proxy.asked("PUT", place)


async def test_a_bucket_is_reached_directly_whatever_the_environment_says(
    s3: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead_proxy.use(monkeypatch)
    store = open_store(settings(through_proxy(s3.meta.endpoint_url), tmp_path))
    await store.put("b", b"2")
    assert await store.get("b") == b"2"


async def test_a_full_bucket_says_so_within_seconds(tmp_path: Path) -> None:
    """As MinIO answers; a gateway's client waits meanwhile."""
    tries = 0

    async def full(_: web.Request) -> web.Response:
        nonlocal tries
        tries += 1
        text = "<Error><Code>XMinioStorageFull</Code><Message>Storage backend has reached its limit</Message></Error>"
        return web.Response(status=507, text=text, content_type="application/xml")

    app = web.Application()
    app.router.add_put("/{path:.*}", full)
    async with TestServer(app) as server:
        store = open_store(settings(str(server.make_url("")), tmp_path))
        begun = time.monotonic()
        with pytest.raises(UnavailableError, match="store of files and batches is full"):
            await store.put("a", b"1")
        assert time.monotonic() - begun < 10, tries
