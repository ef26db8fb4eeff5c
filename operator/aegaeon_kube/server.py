"""Calls and watches of an API server. A pod's token is read for every call, since the kubelet renews it."""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from aegaeon_kube.errors import KubeError
from aegaeon_proto.outbound.egress import as_usual, from_environment

Json = dict[str, Any]
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT = aiohttp.ClientTimeout(total=30, connect=5)
_SLACK_S = 5.0  # after a watch's timeout; a watch that is still open then is dead
_NO_CLUSTER = "no cluster: run in a pod with a service account, or set KUBECONFIG"


Observer = Callable[[str, str, int, float], None]
"""Method, path, status (0: no answer) and seconds of a finished call."""


def _unobserved(_method: str, _path: str, _status: int, _seconds: float) -> None:
    """Ignore a call, for clients without metrics."""


class ApiServer:
    """A client. Methods raise KubeError with the status and the server's message. `observe` receives every call."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        headers: Callable[[], Mapping[str, str]],
        observe: Observer = _unobserved,
    ) -> None:
        self._session = session
        self._headers = headers
        self._observe = observe

    async def call(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Json:
        """Send a request and return the answer."""
        data = None if body is None else json.dumps(body)
        headers = {**self._headers(), "Content-Type": content_type, "Accept": accept}
        began, status = time.monotonic(), 0
        try:
            async with self._session.request(method, path, params=params, data=data, headers=headers) as answer:
                text, status = await answer.text(), answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unanswered(error) from error
        finally:
            self._observe(method, path, status, time.monotonic() - began)
        if status >= 400:
            raise KubeError(status, _message(text))
        content: Json = json.loads(text)
        return content

    async def watch(
        self, path: str, labels: str, since: str, for_s: int, accept: str = "application/json"
    ) -> AsyncIterator[Json]:
        """Yield events ({type, object}) of the objects of `path` after resourceVersion `since`, for `for_s` seconds."""
        params = {"watch": "1", "labelSelector": labels, "resourceVersion": since, "timeoutSeconds": str(for_s)}
        timeout = aiohttp.ClientTimeout(total=for_s + _SLACK_S, connect=5)
        try:
            headers = {**self._headers(), "Accept": accept}
            async with self._session.get(path, params=params, headers=headers, timeout=timeout) as answer:
                if answer.status >= 400:
                    raise KubeError(answer.status, _message(await answer.text()))
                buffer = b""
                async for chunk in answer.content.iter_any():  # not by lines, which aiohttp limits to its buffer
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for line in lines:
                        yield _event(line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unanswered(error) from error


@asynccontextmanager
async def connect(observe: Observer = _unobserved) -> AsyncIterator[ApiServer]:
    """Connect to the cluster of KUBECONFIG, or of this pod. Raises KubeError without either."""
    url, context, headers, proxy = _from_kubeconfig() if os.environ.get("KUBECONFIG") else _from_pod()
    connector = aiohttp.TCPConnector(ssl=context, limit=32)
    async with aiohttp.ClientSession(url, connector=connector, timeout=_TIMEOUT, proxy=proxy) as session:
        yield ApiServer(session, headers, observe)


Login = tuple[str, ssl.SSLContext, Callable[[], Mapping[str, str]], str | None]
"""URL, TLS, headers and proxy: the same proxy as kubectl uses; none in a pod."""


def _from_pod() -> Login:
    token = ACCOUNT / "token"
    if not token.exists() or "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise KubeError(0, _NO_CLUSTER)
    context = as_usual(ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt")))
    return address_in_pod(), context, lambda: {"Authorization": f"Bearer {token.read_text('utf-8').strip()}"}, None


def address_in_pod() -> str:
    """Return the API server's address from a pod's environment, which needs no DNS."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _from_kubeconfig() -> Login:
    import kopf  # supports every login method of kubeconfig files; pods do not need it

    login = kopf.login_with_kubeconfig(settings=kopf.OperatorSettings())
    if login is None:
        raise KubeError(0, _NO_CLUSTER)
    headers = login.as_http_headers()
    proxy = from_environment(os.environ).proxy_of(login.server)
    context = as_usual(login.as_ssl_context())
    return login.server, context, lambda: headers, login.proxy_url or (proxy.url if proxy else None)


def _event(line: bytes) -> Json:
    event: Json = json.loads(line)
    if event["type"] == "ERROR":
        raise KubeError(int(event["object"].get("code", 0)), str(event["object"].get("message")))
    return event


def _unanswered(error: Exception) -> KubeError:
    return KubeError(0, f"the API server does not answer: {error or type(error).__name__}")


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:500]
