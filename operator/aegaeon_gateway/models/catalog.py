"""The models that the scheduler says are served, and waiting, for a bounded time, until one takes requests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from aegaeon_gateway.errors import ApiError, ModelNotFoundError, UnsupportedModelError, model_failed, overloaded
from aegaeon_proto.v1.gateway_pb2 import ModelStatus
from aegaeon_proto.v1.model_pb2 import ModelPhase

_MOST_CHARACTERS = 200  # of a reason in a sentence about something else


def served_length(model: ModelStatus) -> int:
    """Tokens of prompt and output together; 0 while unknown."""
    return model.footprint.max_model_len or model.spec.max_model_len


def phase_name(model: ModelStatus) -> str:
    """For people: unspecified, absent, fetching, cached or failed."""
    return "absent" if model.absent else ModelPhase.Name(model.phase).removeprefix("MODEL_PHASE_").lower()


def why_not_ready(model: ModelStatus) -> str:
    """Why no engine can have it yet, in one line; empty where one has it, or that is not known."""
    if model.phase == ModelPhase.MODEL_PHASE_UNSPECIFIED:
        return _line(model.reason)
    if model.phase != ModelPhase.MODEL_PHASE_FETCHING:
        return ""
    if model.bytes_total:
        left = f", {math.ceil(model.remaining_s)} s left" if model.remaining_s else ""
        return f"the model is being fetched: {100 * model.bytes_done // model.bytes_total} %{left}"
    if model.absent:
        return "the model is being fetched"
    return "the model is being prepared" + (f": {_line(model.reason)}" if model.reason else "")


def _line(reason: str) -> str:
    return " ".join(reason.split())[:_MOST_CHARACTERS]


def failure_of(model: ModelStatus) -> ApiError | None:
    """The error for requests for a model that no engine serves; None while one does, or may."""
    if model.phase != ModelPhase.MODEL_PHASE_FAILED:
        return None
    made = UnsupportedModelError if model.unsupported else model_failed
    return made(model.spec.name, model.reason)


class Catalog:
    """The newest CatalogStatus. It outlives the connection it came by. `on_change` is called with every new one."""

    def __init__(self, on_change: Callable[[list[ModelStatus]], None]) -> None:
        self._on_change = on_change
        self._models: dict[str, ModelStatus] = {}
        self._changed = asyncio.Event()
        self.known = False

    def update(self, models: Iterable[ModelStatus]) -> None:
        """Take the whole list; what is missing from it is withdrawn."""
        self._models = {model.spec.name: model for model in models}
        self.known = True
        self._on_change(self.models())
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait for the next update."""
        await self._changed.wait()

    def models(self) -> list[ModelStatus]:
        return list(self._models.values())

    def find(self, name: str) -> ModelStatus | None:
        """None: it is not served (any more)."""
        return self._models.get(name)

    def get(self, name: str) -> ModelStatus:
        """Raises ModelNotFoundError."""
        try:
            return self._models[name]
        except KeyError:
            raise ModelNotFoundError(name, self._models) from None

    async def ready(self, name: str, hold_s: float) -> ModelStatus:
        """Wait until the scheduler takes requests for the model: it serves it, or has no engine yet that could.

        Raises ApiError: at once when it is none of the catalog's or has failed, after `hold_s` when it only starts.
        """
        try:
            async with asyncio.timeout(hold_s):
                while not (self.known and self._is_ready(name)):
                    await self.changed()
        except TimeoutError:
            model = self.find(name)
            why = why_not_ready(model) if model is not None else ""
            message = f"The model {name!r} is still starting{f' ({why})' if why else ''}; try again."
            raise overloaded(message, retry_after_s=hold_s / 4) from None
        return self.get(name)

    def _is_ready(self, name: str) -> bool:
        model = self.get(name)
        if (failure := failure_of(model)) is not None:
            raise failure
        return not model.wait
