"""An engine that computes decodes as on a GPU, by Triton's interpreter: `python -m stack.paged_engine`."""

from __future__ import annotations

import sys
from functools import partial

from aegaeon_sidecar import process
from aegaeon_sidecar.backends.torch import TorchBackend, decodes

if __name__ == "__main__":
    decodes.ROWS = (4,)  # of a pass: the interpreter computes one after the other
    process.TorchBackend = partial(TorchBackend, paged=True)  # type: ignore[misc,assignment]  # no seam but for tests
    sys.exit(process.main())
