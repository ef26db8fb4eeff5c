"""An engine that a defect of one model's kernels ends, by a real signal: `python -m sidecar.segfault_engine`."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Sequence
from unittest.mock import patch

from aegaeon_sidecar import process
from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.backends import torch as torch_backend
from aegaeon_sidecar.backends.torch import TorchBackend


class Segfault(TorchBackend):
    """Reads memory that is not mapped in each step of the model `bad`."""

    def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
        if model == "bad":
            faulthandler._sigsegv()
        return super().launch(model, inputs, after)


if __name__ == "__main__":
    with patch.object(torch_backend, "TorchBackend", Segfault):
        sys.exit(process.main())
