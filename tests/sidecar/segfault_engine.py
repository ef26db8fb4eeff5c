"""An engine that a defect of one model's kernels ends, by a real signal: `python -m sidecar.segfault_engine`."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Sequence

from aegaeon_sidecar import process
from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.backends.torch import TorchBackend


class Segfault(TorchBackend):
    """Reads memory that is not mapped in each step of the model `bad`."""

    def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
        if model == "bad":
            faulthandler._sigsegv()
        return super().launch(model, inputs, after)


if __name__ == "__main__":
    process.TorchBackend = Segfault  # type: ignore[misc]  # the seam is there for no other backend
    sys.exit(process.main())
