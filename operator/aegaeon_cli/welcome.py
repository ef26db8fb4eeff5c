"""The message of `aegaeon up` once everything is ready: the URL, the models, and a curl command to paste."""

from __future__ import annotations

import asyncio
import json

from aegaeon_cli.errors import NoAnswerError
from aegaeon_cli.status import watch_status
from aegaeon_proto.v1.gateway_pb2 import ModelStatus, ModelTraffic, PoolStatus
from aegaeon_proto.v1.model_pb2 import ModelPhase

_POLL_S = 0.2
_LOADED_OR_FAILED = (ModelPhase.MODEL_PHASE_CACHED, ModelPhase.MODEL_PHASE_FAILED)
_ON_DEMAND = "on no node; fetched at the first request"


async def wait_for_models(scheduler: str, patience_s: float) -> PoolStatus:
    """Wait until every model and adapter is cached, failed, or fetched on demand only; returns the last status, after
    `patience_s` or without engines as it is then.

    Waits for a scheduler that restarts. Raises NoAnswerError when it does not answer in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            async for status in watch_status(scheduler, _POLL_S):
                over = loop.time() > deadline or not status.instances
                if over or all(model.absent or model.phase in _LOADED_OR_FAILED for _, model in by_name(status)):
                    return status
        except NoAnswerError:
            if loop.time() > deadline:
                raise
        await asyncio.sleep(_POLL_S)


def welcome(status: PoolStatus, url: str, seconds: float) -> str:
    """The text to print; models in the order of the manifests, then adapters."""
    named = by_name(status)
    width = max((len(name) for name, _ in named), default=0)
    none = "" if status.instances else "on no engine yet; the first request starts an engine"
    models = "\n".join(f"  {name:<{width}}  {none or phase_text(model)}" for name, model in named)
    return (
        f"\nready in {seconds:.1f} s: {url}/v1\n\n{models}\n\n"
        f"try it:\n{curl(url, _example(status))}\n\nwatch it:\n  aegaeon top\n\nCtrl-C ends it."
    )


def by_name(status: PoolStatus) -> list[tuple[str, ModelTraffic | ModelStatus]]:
    """The models, then the adapters."""
    named: list[tuple[str, ModelTraffic | ModelStatus]] = [(model.model, model) for model in status.models]
    named += [(adapter.spec.name, adapter) for adapter in status.adapters]
    return named


def phase_text(model: ModelTraffic | ModelStatus) -> str:
    """`cached`, `fetching 12 %, 80 MB/s, 9 s to go`, `failed: why`, `not served: why`."""
    match model.phase:
        case ModelPhase.MODEL_PHASE_FAILED:
            return f"failed: {model.reason}"
        case ModelPhase.MODEL_PHASE_CACHED:
            return "cached"
        case ModelPhase.MODEL_PHASE_FETCHING if model.absent:
            return _ON_DEMAND
        case ModelPhase.MODEL_PHASE_FETCHING if model.bytes_total:
            pace = f", {model.bytes_per_s / 1e6:.0f} MB/s, {model.remaining_s:.0f} s to go" if model.bytes_per_s else ""
            return f"fetching {100 * model.bytes_done // model.bytes_total} %{pace}"
        case ModelPhase.MODEL_PHASE_UNSPECIFIED if model.reason:
            return f"not served: {model.reason}"
    return "fetching"


def curl(url: str, model: str) -> str:
    """A streaming chat request, ready to paste."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
    return f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{json.dumps(body)}'"


def _example(status: PoolStatus) -> str:
    good = [model.model for model in status.models if model.phase == ModelPhase.MODEL_PHASE_CACHED]
    return (good or [model.model for model in status.models] or ["MODEL"])[0]
