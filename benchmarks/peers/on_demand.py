"""`python -m benchmarks.peers.on_demand CONFIG`: one server process for each model, started when it is asked for.

As llama-swap does it: so many processes at a time; the one asked for longest ago makes room, after it has answered what
it was asked. CONFIG: {"port", "slots", "logs", "models": {name: {"argv", "port", "ready"}}}.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import Process
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

_POLL_S = 0.1
_STOP_S = 10.0


@dataclass(slots=True)
class _Model:
    argv: list[str]
    port: int
    ready: str
    process: Process | None = None
    serves: bool = False
    open: int = 0
    asked: float = 0.0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)


class OnDemand:
    """The processes, and the requests that are led to them."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._models = {name: _Model(**given) for name, given in config["models"].items()}
        self._slots = config["slots"]
        self._logs = Path(config["logs"])
        self._swap = asyncio.Lock()
        self._client: aiohttp.ClientSession | None = None

    async def run(self, app: web.Application) -> Any:
        """As an aiohttp clean-up context."""
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        yield
        for model in self._models.values():
            await self._stop(model)
        await self._client.close()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        assert self._client is not None
        body = await request.read()
        model = self._models[json.loads(body)["model"]]
        model.asked = time.monotonic()
        await self._enter(model)
        try:
            url = f"http://127.0.0.1:{model.port}/v1/completions"
            async with self._client.post(url, data=body, headers={"Content-Type": "application/json"}) as found:
                answer = web.StreamResponse(status=found.status, headers={"Content-Type": found.content_type})
                await answer.prepare(request)
                async for piece in found.content.iter_any():
                    await answer.write(piece)
                return answer
        finally:
            model.open -= 1
            async with model.changed:
                model.changed.notify_all()

    async def _enter(self, model: _Model) -> None:
        if not model.serves:
            async with self._swap:  # in the order in which they came
                if not model.serves:
                    await self._make_room()
                    await self._start(model)
        model.open += 1

    async def _make_room(self) -> None:
        there = [model for model in self._models.values() if model.process]
        if len(there) < self._slots:
            return
        victim = min(there, key=lambda model: model.asked)
        victim.serves = False
        async with victim.changed:
            await victim.changed.wait_for(lambda: not victim.open)
        await self._stop(victim)

    async def _start(self, model: _Model) -> None:
        assert self._client is not None
        with (self._logs / f"{model.port}.log").open("ab") as log:
            model.process = await asyncio.create_subprocess_exec(*model.argv, stdout=log, stderr=log)
        while model.process.returncode is None:
            with suppress(aiohttp.ClientError):
                async with self._client.get(f"http://127.0.0.1:{model.port}{model.ready}") as found:
                    if found.status == 200:
                        model.serves = True
                        return
            await asyncio.sleep(_POLL_S)
        ended, model.process = model.process.returncode, None
        raise web.HTTPBadGateway(text=f"the process ended with {ended}")

    async def _stop(self, model: _Model) -> None:
        process, model.process = model.process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def main(config: dict[str, Any]) -> None:
    """Serve until SIGTERM."""
    app = web.Application()
    models = OnDemand(config)
    app.cleanup_ctx.append(models.run)
    app.router.add_post("/v1/completions", models.complete)

    async def listed(_request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in config["models"]]})

    app.router.add_get("/v1/models", listed)
    web.run_app(app, host="127.0.0.1", port=config["port"], print=None)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text("utf-8")))
