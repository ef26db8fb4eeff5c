"""The processor level of the libraries that an engine computes with: AEGAEON_CPU_LEVEL lowers it together with that of
the native core, so that a machine behaves as one of that level."""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping

LEVEL = "AEGAEON_CPU_LEVEL"
_LIBRARIES = {  # torch and oneDNN read them at their first use
    "baseline": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def lower_libraries(environment: MutableMapping[str, str]) -> None:
    """Lower the level of torch and oneDNN in this process, before it imports torch, and in its children.

    What torch compiles is kept in a folder of the level. Its key for a kernel's source (FxGraphHashDetails, torch 2.13)
    does not hold the level, and a source written for vectors of 16 computes garbage when it is compiled for 8.
    """
    level = environment.get(LEVEL, "")
    if level in _LIBRARIES:
        environment.update(_LIBRARIES[level] | {_COMPILED: _compiled(environment, f"-{level}")})


def _compiled(environment: MutableMapping[str, str], suffix: str) -> str:
    """This user's folder of compiled kernels, or the named one, with the level's suffix: once, also in children."""
    folder = environment.get(_COMPILED) or f"{tempfile.gettempdir()}/torchinductor_uid_{os.getuid()}"
    return folder.removesuffix(suffix) + suffix
