"""How often the interpreter looks for reference cycles in a scheduler's process.

The core makes none, and its tables are large: by default a look that frees nothing comes some times a second, and
each takes milliseconds, or with all tables a tenth of a second, in which no call is answered.
"""

from __future__ import annotations

import gc

_YOUNG, _MIDDLE, _OLD = 50_000, 20, 10


def relax() -> None:
    """Look after 50,000 objects more than before, instead of 700, and at all tables after 200 such looks."""
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
