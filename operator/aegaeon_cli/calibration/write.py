"""The constants file: what `aegaeon calibrate` writes and the scheduler reads (docs/design/processes.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aegaeon_cli.calibration.fit import Fit


@dataclass(frozen=True, slots=True)
class ModelConstants:
    """One model on one device. `floor_s`: the shortest prefill that was measured."""

    model: str
    device: str
    step: Fit
    prefill: Fit
    floor_s: float
    copy_bytes_per_s: float

    def constants(self) -> dict[str, object]:
        """The scheduler's part, under its names."""
        (a, b, c), (p0, p1, p2) = self.step.coefficients, self.prefill.coefficients
        return {
            "model": self.model,
            "device": self.device,
            "a": a,
            "b": b,
            "c": c,
            "p0": p0,
            "p1": p1,
            "p2": p2,
            "floor": self.floor_s,
            "load_bytes_per_s": self.copy_bytes_per_s,
            "kv_bytes_per_s": self.copy_bytes_per_s,
        }

    def quality(self) -> dict[str, object]:
        """How good they are, for people."""
        return {
            "model": self.model,
            "device": self.device,
            "step": {"r2": self.step.r2, "mean_error": self.step.mean_error},
            "prefill": {"r2": self.prefill.r2, "mean_error": self.prefill.mean_error},
        }


def write_constants(file: Path, models: Sequence[ModelConstants]) -> None:
    """Write the file whole; a reader never sees half of it."""
    content = {"constants": [m.constants() for m in models], "fits": [m.quality() for m in models]}
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.new")
    draft.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    draft.replace(file)
