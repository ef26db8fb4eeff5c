"""The constants file: written by `aegaeon calibrate`, read by the scheduler, and a device of the simulator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from aegaeon_cli.calibration.fit import Fit

_STEP, _PREFILL = ("a", "b", "c"), ("p0", "p1", "p2")


@dataclass(frozen=True, slots=True)
class ModelConstants:
    """Constants of one model on one device. `floor_s`: the shortest measured prefill. `load`, `kv`: seconds per
    byte."""

    model: str
    device: str
    step: Fit
    prefill: Fit
    load: Fit
    kv: Fit
    floor_s: float
    weight_bytes: int
    kv_bytes_per_token: int
    context_tokens: int

    def constants(self) -> dict[str, object]:
        """The constants under the names that scheduler and simulator use."""
        return {
            "model": self.model,
            "device": self.device,
            **dict(zip(_STEP, self.step.coefficients, strict=True)),
            **dict(zip(_PREFILL, self.prefill.coefficients, strict=True)),
            "floor": self.floor_s,
            "load_bytes_per_s": 1.0 / self.load.coefficients[0],
            "kv_bytes_per_s": 1.0 / self.kv.coefficients[0],
            "weight_bytes": self.weight_bytes,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "context_tokens": self.context_tokens,
        }

    def fits(self) -> dict[str, Fit]:
        """The fits by the operation they describe."""
        return {"decode step": self.step, "prefill": self.prefill, "weights": self.load, "KV": self.kv}

    def quality(self) -> dict[str, object]:
        """The quality of the fits, for people."""
        quality = {name: {"r2": fit.r2, "mean_error": fit.mean_error} for name, fit in self.fits().items()}
        return {"model": self.model, "device": self.device, **quality}


@dataclass(frozen=True, slots=True)
class Machine:
    """One engine of the pool as the manifest defines it, and the machine's copy rates. Bytes, bytes per second.

    `side_by_side`: the slowdown of two simultaneous copies. `stall_s_per_byte`: seconds by which each byte of a load
    delays steps beside it; 0: not measured.
    """

    memcpy_bytes_per_s: float
    side_by_side: float
    stall_s_per_byte: float
    disk_bytes_per_s: float
    model_bytes: int
    slab_bytes: int
    block_tokens: int
    max_batch: int
    host_kv_bytes: int

    def gpu(self) -> dict[str, object]:
        """The part that the simulator reads. It models copies of weights and KV that share one link, or are
        independent."""
        shape = {name: value for name, value in asdict(self).items() if name not in _OF_COPIES}
        stall = 1.0 / self.stall_s_per_byte if self.stall_s_per_byte else 0.0
        return {**shape, "one_link": self.side_by_side > _HALFWAY, "load_stall_bytes_per_s": stall}


_OF_COPIES = ("memcpy_bytes_per_s", "side_by_side", "stall_s_per_byte")
_HALFWAY = 1.5
DERIVED = (
    "model_bytes, slab_bytes, max_batch, host_kv_bytes: those of the manifest",
    "change_s: 0, not measured",
    "load_stall_bytes_per_s: 0 of a CPU, not measured",
    "one_link: the nearer of two, copies of weights and KV that take turns or do not slow each other down; "
    "decoding slows none of them",
)


def write_constants(file: Path, models: Sequence[ModelConstants], machine: Machine) -> None:
    """Write the file atomically."""
    content = {
        "constants": [m.constants() for m in models],
        "gpu": machine.gpu(),
        "memcpy_bytes_per_s": machine.memcpy_bytes_per_s,
        "side_by_side": machine.side_by_side,
        "derived": DERIVED,
        "fits": [m.quality() for m in models],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.new")
    draft.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    draft.replace(file)
