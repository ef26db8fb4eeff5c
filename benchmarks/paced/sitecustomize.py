"""Python imports this at its start where this folder is on PYTHONPATH: steps of the CPU backend then take a GPU's time.

The tiny models' own steps end in a millisecond, of which other processes on the same cores take whatever they like; a
comparison would measure these. Padded to a fixed pace, arithmetic and all else stay real, and time is reproducible.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

DECODE_S, DECODE_SEQUENCE_S = 0.012, 0.0008  # of a step, and more for each sequence: about a 13B model's
PREFILL_S, PREFILL_TOKEN_S = 0.010, 0.0004
_MODULE = "aegaeon_sidecar.backends.torch.backend"


def pace_s(inputs: Sequence[Any]) -> float:
    """Seconds that a step of these inputs takes at least."""
    tokens = sum(len(part.tokens) for part in inputs)
    if tokens > len(inputs):
        return PREFILL_S + PREFILL_TOKEN_S * tokens
    return DECODE_S + DECODE_SEQUENCE_S * len(inputs)


def _paced(step: Any) -> Any:
    @wraps(step)
    def paced(self: Any, model: str, inputs: Sequence[Any]) -> Any:
        due = time.perf_counter() + pace_s(inputs)
        result = step(self, model, inputs)
        time.sleep(max(0.0, due - time.perf_counter()))
        return result

    return paced


class _Pacer(MetaPathFinder):
    """Wraps the backend's `step` as soon as the module is loaded."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def loaded(module: ModuleType) -> None:
            load(module)
            module.TorchBackend.step = _paced(module.TorchBackend.step)  # type: ignore[attr-defined]

        spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Pacer())
