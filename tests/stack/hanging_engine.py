"""An engine whose device never ends a step with one token, as when a kernel hangs: `python -m stack.hanging_engine`.

Its log has the time at which the step began: `hangs since SECONDS`, of time.time().
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from unittest.mock import patch

from conftest import FATAL_TOKEN
from torch import Tensor

from aegaeon_sidecar import process
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends import torch as torch_backend
from aegaeon_sidecar.backends.torch import TorchBackend


class Hanging(TorchBackend):
    """The thread of its steps waits for ever; all others go on."""

    def _forward(self, model: str, inputs: Sequence[StepInput], wanted: Sequence[int] | None) -> Tensor:
        if any(FATAL_TOKEN in part.tokens for part in inputs):
            logging.getLogger(__name__).warning("hangs since %f", time.time())
            threading.Event().wait()
        return super()._forward(model, inputs, wanted)


if __name__ == "__main__":
    with patch.object(torch_backend, "TorchBackend", Hanging):
        sys.exit(process.main())
