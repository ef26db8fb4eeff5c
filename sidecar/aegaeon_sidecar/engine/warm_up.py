"""First steps of a model done ahead, on a KV block of their own: a turn that warms up has no sequence.

The block is there because every row of a decode writes its token's KV somewhere, and no sequence reads it.
"""

from __future__ import annotations

import logging
import time

import numpy as np

from aegaeon_native import OutOfSlabs
from aegaeon_sidecar.backends import Backend, StepInput
from aegaeon_sidecar.domain.errors import UnknownError
from aegaeon_sidecar.domain.first_steps import PREFILL
from aegaeon_sidecar.engine.progress import TurnProgress
from aegaeon_sidecar.engine.state import State
from aegaeon_sidecar.engine.steps import STEP_ERRORS
from aegaeon_sidecar.engine.turn import Turn
from aegaeon_sidecar.memory.eviction import Blocks
from aegaeon_sidecar.weights.models import Model

log = logging.getLogger(__name__)

_TOKEN = 0  # every vocabulary has it


class WarmUp:
    """Used by the compute lane's thread alone."""

    def __init__(self, state: State, backend: Backend) -> None:
        self._state = state
        self._backend = backend

    def run(self, turn: Turn, model: Model, progress: TurnProgress) -> None:
        """One kind of step that has not run yet, if there is one. What it raises a sequence would meet as well, and end
        with: so it is logged, and not tried again. Raises UnknownError, DeviceLostError."""
        kind = model.first_steps.next
        if kind is not None:
            blocks = self._claim(turn, model)
            try:
                self._step(kind, model, blocks, progress)
            finally:
                self._release(model, blocks)
        progress.warm = not model.first_steps.cold

    def _step(self, kind: int, model: Model, blocks: Blocks, progress: TurnProgress) -> None:
        start = time.perf_counter()
        try:
            assert model.layout is not None
            self._backend.launch(model.name, _inputs(kind, blocks, model.layout.kv_block_tokens)).results()
        except STEP_ERRORS as error:
            log.warning("a first step of %s (%s) failed: %s", model.name, _name(kind), error)
        else:
            progress.first_s += time.perf_counter() - start
            progress.steps += kind != PREFILL
        model.first_steps.ran(kind)

    def _claim(self, turn: Turn, model: Model) -> Blocks:
        """A block; from here on no unload takes the weights."""
        with self._state.monitor.changed:
            if not model.usable or model.layout is None:
                raise UnknownError(f"model {model.name} leaves, so it is not warmed up")
            try:
                blocks = self._state.kv.device.allocate(model.layout.kv_shape, 1, turn.grant)
            except OutOfSlabs as error:
                raise UnknownError(f"model {model.name} is not warmed up: no KV block is free for it") from error
            model.users += 1
            self._state.scratch = model.layout.kv_shape, blocks
            return blocks

    def _release(self, model: Model, blocks: Blocks) -> None:
        with self._state.monitor.changed:
            assert model.layout is not None
            self._state.kv.device.release(model.layout.kv_shape, blocks, published=0, block_s=0.0)
            model.users -= 1
            self._state.scratch = None
            self._state.monitor.notify()


def _inputs(kind: int, blocks: Blocks, block_tokens: int) -> list[StepInput]:
    """A prompt that fills the block; or rows of one token each, all of which write the same to the same place."""
    table = np.asarray(blocks, dtype=np.int32)
    if kind == PREFILL:
        return [StepInput((_TOKEN,) * block_tokens, 0, table, None, prompt=True)]
    return [StepInput((_TOKEN,), 0, table, None)] * kind


def _name(kind: int) -> str:
    return "of a prompt" if kind == PREFILL else f"a decode of {kind} sequences or more"
