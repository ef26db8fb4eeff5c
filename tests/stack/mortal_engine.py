"""An engine whose device fails for good at one token, as of a defect in a kernel: `python -m stack.mortal_engine`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from conftest import FATAL_TOKEN
from torch import Tensor

from aegaeon_sidecar import process
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch import TorchBackend


class Mortal(TorchBackend):
    """Its device is lost before it computes FATAL_TOKEN, in a prompt or as an output."""

    def _forward(self, model: str, inputs: Sequence[StepInput], wanted: Sequence[int] | None) -> Tensor:
        if any(FATAL_TOKEN in part.tokens for part in inputs):
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return super()._forward(model, inputs, wanted)


if __name__ == "__main__":
    process.TorchBackend = Mortal  # type: ignore[misc]  # the seam is there for no other backend
    sys.exit(process.main())
