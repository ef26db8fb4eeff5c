"""Triton's interpreter, quicker.

At each call of a device function it looks for the functions to replace among all that its language has: a quarter of
the time of our tests of kernels. Which ones they are never changes, so here they are looked for once.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from triton.runtime import interpreter


@cache
def _builtins(place: Any) -> tuple[str, ...]:
    return tuple(name for name, member in inspect.getmembers(place) if interpreter.tl.core.is_builtin(member))


def _patch_builtin(place: Any, builder: Any, scope: Any) -> None:
    for name in _builtins(place):
        member = getattr(place, name)
        if interpreter.tl.core.is_builtin(member):  # not where it is replaced already
            interpreter._patch_attr(place, name, member, builder, scope)


for place in (interpreter.tl, interpreter.tl.core, interpreter.tl.math, interpreter.tl.tensor):
    _builtins(place)  # while nothing is replaced
if not hasattr(interpreter, "_patch_builtin"):
    raise ImportError("another version of Triton: see whether its interpreter still needs this module")
interpreter._patch_builtin = _patch_builtin
