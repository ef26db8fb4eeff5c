"""First steps of a model done ahead, on a KV block of their own: a turn that warms up has no sequence.

The block is there because every row of a decode writes its token's KV somewhere, and no sequence reads it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aegaeon_native import OutOfSlabs
from aegaeon_sidecar.backends import Backend, StepInput
from aegaeon_sidecar.domain.errors import UnknownError
from aegaeon_sidecar.domain.first_steps import PREFILL
from aegaeon_sidecar.engine.state import State
from aegaeon_sidecar.engine.steps import STEP_ERRORS
from aegaeon_sidecar.engine.turn import Turn
from aegaeon_sidecar.memory.cache_blocks import Blocks
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.weights.models import Model

log = logging.getLogger(__name__)

_TOKEN = 0  # every vocabulary has it


class WarmUp:
    """Used by the compute lane's thread alone."""

    def __init__(self, state: State, backend: Backend) -> None:
        self._state = state
        self._backend = backend

    def run(self, turn: Turn, model: Model) -> None:
        """One kind of step that has not run yet, if there is one. What it raises a sequence would meet as well, and end
        with: so it is logged, and not tried again. Raises UnknownError, DeviceLostError."""
        kind = model.first_steps.next
        if kind is not None:
            with self._block(turn, model) as (layout, block):
                self._step(turn, model, kind, _inputs(kind, block, layout.kv_block_tokens))
        turn.progress.warm = not model.first_steps.cold

    def _step(self, turn: Turn, model: Model, kind: int, inputs: list[StepInput]) -> None:
        start = time.perf_counter()
        try:
            self._backend.launch(model.name, inputs).results()
        except STEP_ERRORS as error:
            log.warning("a first step of %s (%s) failed: %s", model.name, _name(kind), error)
        else:
            turn.progress.first_s += time.perf_counter() - start
            turn.progress.steps += kind != PREFILL
        model.first_steps.ran(kind)

    @contextmanager
    def _block(self, turn: Turn, model: Model) -> Iterator[tuple[Layout, Blocks]]:
        """A block, while no unload takes the weights. Raises UnknownError."""
        device = self._state.kv.device
        with self._state.monitor.changed:
            layout = model.layout
            if not model.usable or layout is None:
                raise UnknownError(f"model {model.name} leaves, so it is not warmed up")
            try:
                block = device.allocate(layout.kv_shape, 1, turn.grant)
            except OutOfSlabs as error:
                raise UnknownError(f"model {model.name} is not warmed up: no KV block is free for it") from error
            model.users += 1
            self._state.scratch = layout.kv_shape, block
        try:
            yield layout, block
        finally:
            with self._state.monitor.changed:
                device.release(layout.kv_shape, block, published=0, block_s=0.0)
                model.users -= 1
                self._state.scratch = None
                self._state.monitor.notify()


def _inputs(kind: int, block: Blocks, block_tokens: int) -> list[StepInput]:
    """A prompt that fills the block; or rows of one token each, all of which write the same to the same place."""
    if kind == PREFILL:
        return [StepInput((_TOKEN,) * block_tokens, 0, block, None, prompt=True)]
    return [StepInput((_TOKEN,), 0, block, None)] * kind


def _name(kind: int) -> str:
    return "of a prompt" if kind == PREFILL else f"a decode of {kind} sequences or more"
