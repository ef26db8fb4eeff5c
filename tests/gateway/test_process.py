"""`python -m aegaeon_gateway` as a process: its configuration, its ports, its end."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aegaeon_gateway.config import GatewayConfig, load_config
from aegaeon_gateway.errors import ConfigError
from aegaeon_gateway.run import serve
from aegaeon_gateway.workers.supervisor import Starter, Stopped

BODY = {"model": "tiny", "prompt": "hi", "max_tokens": 200}
TEXT = "Größe 🙂, 数字 and the quick brown fox; tokens are scheduled one by one."


def settings(peer: Any, **changes: Any) -> dict[str, Any]:
    return {"name": "gw", "listen": "127.0.0.1:0", "scheduler": peer.target, "sink": peer.sink, **changes}


async def start(folder: Path, config: dict[str, Any]) -> asyncio.subprocess.Process:
    path = folder / "gateway.json"
    path.write_text(json.dumps(config))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aegaeon_gateway", "--config", str(path), stderr=asyncio.subprocess.PIPE
    )


async def port_of(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async for line in process.stderr:
        if match := re.search(rb"listening on http://127.0.0.1:(\d+)", line):
            return int(match[1])
    raise AssertionError("it ended before it listened")


async def terminate(process: asyncio.subprocess.Process) -> None:
    """Send SIGTERM; returns once the gateway says that it is stopping."""
    process.terminate()
    assert process.stderr is not None
    async for line in process.stderr:
        if b"stopping" in line:
            break


async def test_sigterm_drains_open_requests_and_accepts_no_new_ones(peer: Any, tmp_path: Path) -> None:
    peer.serve_tokens = False
    process = await start(tmp_path, settings(peer))
    url = f"http://127.0.0.1:{await port_of(process)}"
    async with aiohttp.ClientSession() as http:

        async def ask() -> Any:
            async with http.post(f"{url}/v1/completions", json=BODY) as response:
                return await response.json()

        asked = asyncio.create_task(ask())
        await peer.until(lambda: bool(peer.submits))
        await terminate(process)
        submit = peer.submits[0]
        await peer.push(peer.tokens_of(submit, submit.choices[0]))
        assert (await asked)["choices"][0]["text"] == TEXT
        with pytest.raises(aiohttp.ClientConnectionError):
            await http.get(f"{url}/health")
    await process.communicate()
    assert process.returncode == 0


async def test_a_client_changes_to_another_gateway_between_two_answers(peer: Any, tmp_path: Path) -> None:
    peer.serve_tokens = False
    process = await start(tmp_path, settings(peer, withdraw_s=1.0))
    url = f"http://127.0.0.1:{await port_of(process)}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:
        asked = asyncio.create_task(http.post(f"{url}/v1/completions", json=BODY | {"stream": True}))
        await peer.until(lambda: bool(peer.submits))
        tokens = peer.tokens_of(peer.submits[0], peer.submits[0].choices[0])
        await peer.push(tokens[:5])
        async with await asked as response:
            assert "Connection" not in response.headers
            await terminate(process)
            async with aiohttp.ClientSession() as other, other.get(f"{url}/v1/models") as models:
                assert (models.status, models.headers["Connection"]) == (200, "close")
            await asyncio.sleep(1.5)  # no proxy in front sends anything new by now
            await peer.push(tokens[5:])
            assert (await response.text()).endswith("data: [DONE]\n\n")
        async with http.get(f"{url}/v1/models") as again:  # at once, on the connection that it has
            assert (again.status, again.headers["Connection"]) == (200, "close")
        with pytest.raises(aiohttp.ClientConnectionError):
            await http.get(f"{url}/v1/models")
    await process.communicate()
    assert process.returncode == 0


async def test_a_port_in_use_is_reported_in_one_sentence(peer: Any, tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    process = await start(tmp_path, settings(peer, listen=f"127.0.0.1:{port}"))
    _, errors = await process.communicate()
    server.close()
    await server.wait_closed()
    assert process.returncode == 2
    assert re.search(rf"^gateway: .*{port}", errors.decode(), re.MULTILINE)


async def test_a_gateway_whose_sink_cannot_listen_leaves_no_fork_server(
    peer: Any, tmp_path: Path, start_workers: Starter
) -> None:
    ends: list[socket.socket] = []

    async def start(sock: socket.socket) -> Stopped:
        ends.append(sock.dup())
        return await start_workers(sock)

    config = GatewayConfig(**settings(peer, sink=f"unix:{tmp_path}/none/sink.sock"))
    with pytest.raises(OSError, match=r"cannot serve on unix:.*/none/sink.sock: No such file or directory"):
        async with serve(config, start):
            pass
    [end] = ends
    with end:
        end.settimeout(10)
        assert end.recv(1) == b""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "colour"),
        ({"hold_s": "long"}, "hold_s"),
        ({"hold_s": -1}, "hold_s"),
        ({"max_body_bytes": True}, "max_body_bytes"),
        ({"listen": "8000"}, "listen"),
        ({"sink": None}, "sink"),
    ],
)
def test_a_wrong_configuration_names_file_and_key(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "gateway.json"
    good = {"name": "gw", "listen": "127.0.0.1:0", "scheduler": "unix:s", "sink": "unix:t"}
    path.write_text(json.dumps({**good, **change}))
    with pytest.raises(ConfigError, match=f"gateway.json: {message}: "):
        load_config(path)
    path.write_text(json.dumps(good))
    assert load_config(path).address == ("127.0.0.1", 0)
