"""What an engine needs beside its slabs where the manifest does not say: an estimate, which engines hold against what
they measure.

It is made before any model is known. So it allows for wide ones: what is measured is usually well below.
"""

from __future__ import annotations

from aegaeon_operator.spec.engines import PASS_ROWS
from aegaeon_operator.spec.resources import GpuPoolSpec

_MIB = 1 << 20
# On a CPU: the interpreter and libraries with their threads and compiled kernels.
_PROCESS = {"torch": 512 * _MIB, "vllm": 1536 * _MIB}
# On a GPU: the driver's context, workspaces of libraries, compiled kernels and graphs.
_CONTEXT = 2048 * _MIB
_ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}
_FEATURES = 4 * 32768  # of a token, in a layer: what goes into and comes out of the widest products at a time
_VOCABULARY = 262144
_LOGITS = 3 * 4  # bytes of each: as computed, reshaped, and sorted, in float32


def outside_bytes(spec: GpuPoolSpec) -> int:
    """Of each accelerator of an engine, adapters left out."""
    if spec.memory.outside_slabs is not None:
        return spec.memory.outside_slabs
    base = _PROCESS[spec.backend] if spec.accelerator.device == "cpu" else _CONTEXT
    # On a GPU a pass of decodes has room for PASS_ROWS sequences, whatever the batch.
    decodes = spec.max_batch if spec.accelerator.device == "cpu" else PASS_ROWS
    rows = max(spec.tuning.prefill_chunk_tokens, decodes)
    activations = rows * _FEATURES * _ITEM[spec.accelerator.dtype]
    return base + activations + decodes * _VOCABULARY * _LOGITS
