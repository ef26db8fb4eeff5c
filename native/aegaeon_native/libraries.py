"""The processor level of the libraries that an engine computes with: AEGAEON_CPU_LEVEL lowers it together with that of
the native core, so that a machine behaves as one of that level."""

from __future__ import annotations

from collections.abc import MutableMapping

LEVEL = "AEGAEON_CPU_LEVEL"
_LIBRARIES = {  # torch and oneDNN read them at their first use
    "baseline": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}


def lower_libraries(environment: MutableMapping[str, str]) -> None:
    """Lower the level of torch and oneDNN in this process, before it imports torch, and in its children."""
    environment.update(_LIBRARIES.get(environment.get(LEVEL, ""), {}))
