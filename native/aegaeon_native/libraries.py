"""A processor's level for the libraries that an engine computes with: what AEGAEON_CPU_LEVEL lowers in the native core
is lowered in them as well, so that a machine behaves as one of that level does."""

from __future__ import annotations

from collections.abc import MutableMapping

LEVEL = "AEGAEON_CPU_LEVEL"
_LIBRARIES = {  # torch and oneDNN read them at their first use
    "baseline": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}


def lower_libraries(environment: MutableMapping[str, str]) -> None:
    """Torch and oneDNN in this process, before it imports torch, and in those that it starts."""
    environment.update(_LIBRARIES.get(environment.get(LEVEL, ""), {}))
