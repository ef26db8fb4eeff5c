"""An engine that dies at once of one token, as of a defect in a kernel: `python -m stack.mortal_engine`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from conftest import FATAL_TOKEN

from aegaeon_sidecar import process
from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.backends.torch import TorchBackend


class Mortal(TorchBackend):
    """Kills its process before it computes FATAL_TOKEN, in a prompt or as an output."""

    def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
        if any(FATAL_TOKEN in part.tokens for part in inputs):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().launch(model, inputs, after)


if __name__ == "__main__":
    process.TorchBackend = Mortal  # type: ignore[misc]  # the seam is there for no other backend
    sys.exit(process.main())
