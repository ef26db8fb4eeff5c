"""A VllmBackend that notes what its launches, models and shells take. Import it behind `open_backend`: vLLM comes with
it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aegaeon_native.arrays import DeviceBytes
from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.backends.vllm.backend import VllmBackend
from aegaeon_sidecar.models.placement import Layout


@dataclass(slots=True)
class Launch:
    """`rows`: inputs; when it began, and what the model and its logits took in it: seconds by the thread's clock and,
    `wall`, by the wall's."""

    rows: int
    began_s: float = field(default_factory=time.thread_time)
    began_wall_s: float = field(default_factory=time.perf_counter)
    model_s: float = 0.0
    model_wall_s: float = 0.0


class Watched(VllmBackend):
    """`shell_s`: CPU seconds of each model's shell."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.launches: list[Launch] = []
        self.shell_s: list[float] = []

    def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
        self.launches.append(Launch(len(inputs)))
        return super().launch(model, inputs, after)

    def again(self, model: str, before: Launched) -> Launched | None:
        self.launches.append(Launch(self.launches[-1].rows))
        launched = super().again(model, before)
        if launched is None:
            self.launches.pop()
        return launched

    def describe(self, directory: Path, max_model_len: int, task: str = "") -> Layout:
        began = time.thread_time()
        layout = super().describe(directory, max_model_len, task)
        self.shell_s.append(time.thread_time() - began)
        return layout

    def register(self, model: str, directory: Path, layout: Layout, *weights: DeviceBytes) -> None:
        began = time.thread_time()
        super().register(model, directory, layout, *weights)
        self.shell_s[-1] += time.thread_time() - began
        built = self._shells[model][0].model
        built.forward, built.compute_logits = self._timed(built.forward), self._timed(built.compute_logits)

    def _timed(self, function: Any) -> Any:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            began, began_wall = time.thread_time(), time.perf_counter()
            result = function(*arguments, **keywords)
            launch = self.launches[-1]
            launch.model_s += time.thread_time() - began
            launch.model_wall_s += time.perf_counter() - began_wall
            return result

        return timed
