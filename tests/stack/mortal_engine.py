"""An engine whose device fails for good at one token, as of a defect in a kernel: `python -m stack.mortal_engine`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from unittest.mock import patch

import torch
from conftest import FATAL_TOKEN
from torch import Tensor

from aegaeon_sidecar import process
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends import torch as torch_backend
from aegaeon_sidecar.backends.torch import TorchBackend


class Mortal(TorchBackend):
    """Its device is lost before it computes FATAL_TOKEN, in a prompt or as an output."""

    def _forward(self, model: str, inputs: Sequence[StepInput], wanted: Sequence[int] | None) -> Tensor:
        if any(FATAL_TOKEN in part.tokens for part in inputs):
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return super()._forward(model, inputs, wanted)


if __name__ == "__main__":
    with patch.object(torch_backend, "TorchBackend", Mortal):
        sys.exit(process.main())
