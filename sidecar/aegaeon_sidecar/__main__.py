"""`python -m aegaeon_sidecar --config FILE`: an engine process, which handles SIGTERM from its first moment on."""

from __future__ import annotations

import gc
import os
import signal
import sys

from aegaeon_native.libraries import lower_libraries


def _start() -> int:
    """A container's first process ignores SIGTERM until it has a handler: terminated while torch is loaded, which takes
    seconds, it would begin its work, be killed long after, and leave its files to the node."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    lower_libraries(os.environ)
    gc.disable()  # until all is imported: collections beside it are a fifth of the time that torch's import takes
    from aegaeon_sidecar.process import main

    return main()


if __name__ == "__main__":
    sys.exit(_start())
