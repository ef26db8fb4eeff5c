"""Python imports this at its start where this folder is on PYTHONPATH: steps and loads then take a GPU's time.

The tiny models' own end in a millisecond, of which other processes on the same cores take whatever they like; a
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
LOAD_BYTES_PER_S = 60e6  # of weights: the tiny models of 4 to 5 MB then load as long as some GB do
_BACKEND, _SWITCH = "aegaeon_sidecar.backends.torch.backend", "aegaeon_sidecar.engine.switch"


def pace_s(inputs: Sequence[Any]) -> float:
    """Seconds that a step of these inputs takes at least."""
    tokens = sum(len(part.tokens) for part in inputs)
    if tokens > len(inputs):
        return PREFILL_S + PREFILL_TOKEN_S * tokens
    return DECODE_S + DECODE_SEQUENCE_S * len(inputs)


def _pad(due: float) -> None:
    """Until `due`, seconds of time.perf_counter's clock."""
    # A GPU at work is what this stands for: the thread waits for it, and no processor is taken meanwhile.
    time.sleep(max(0.0, due - time.perf_counter()))


def _paced(launch: Any) -> Any:
    """On a CPU a step is over when its launch returns."""

    @wraps(launch)
    def paced(self: Any, model: str, inputs: Sequence[Any], *more: Any) -> Any:
        due = time.perf_counter() + pace_s(inputs)
        result = launch(self, model, inputs, *more)
        _pad(due)
        return result

    return paced


def _paced_bring(bring: Any) -> Any:
    @wraps(bring)
    def paced(self: Any, *given: Any) -> int:
        began = time.perf_counter()
        moved: int = bring(self, *given)
        _pad(began + moved / LOAD_BYTES_PER_S)
        return moved

    return paced


def _pace(module: Any) -> None:
    if module.__name__ == _BACKEND:
        module.TorchBackend.launch = _paced(module.TorchBackend.launch)
    else:
        module.Switch._bring = _paced_bring(module.Switch._bring)


class _Pacer(MetaPathFinder):
    """Wraps the backend's `launch` and the weights' copy as soon as their modules are loaded."""

    def __init__(self) -> None:
        self._left = {_BACKEND, _SWITCH}

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._left:
            return None
        self._left.remove(name)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def loaded(module: ModuleType) -> None:
            load(module)
            _pace(module)

        spec.loader.exec_module = loaded  # type: ignore[method-assign]  # so that the module is paced once it is loaded
        return spec


sys.meta_path.insert(0, _Pacer())
