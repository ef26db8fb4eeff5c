"""Clients of a stack on this machine that ignore the proxies of the environment (HTTP_PROXY)."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI


def async_client(url: str, key: str = "none", **options: Any) -> AsyncOpenAI:
    """A client for the gateway at `url`, without retries; `options` are AsyncOpenAI's."""
    http = DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, http_client=http, **{"max_retries": 0, **options})


def client(url: str, key: str = "none", **options: Any) -> OpenAI:
    """The same, for code that is not asynchronous."""
    http = DefaultHttpxClient(trust_env=False)
    return OpenAI(base_url=f"{url}/v1", api_key=key, http_client=http, **{"max_retries": 0, **options})


def page(url: str, timeout_s: float = 10.0, tls: ssl.SSLContext | None = None) -> str:
    """The body of the answer to a GET. Raises urllib.error.URLError."""
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=tls))
    with opener.open(url, timeout=timeout_s) as answer:
        return str(answer.read().decode())
