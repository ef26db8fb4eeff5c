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
# On a GPU: the driver's context, workspaces of libraries and compiled kernels.
CONTEXT_BYTES = 1536 * _MIB
GRAPH_BYTES = 4 * _MIB
"""Of a captured decode. On an H200 that of a model with 32 layers took less than 3 MiB."""
_ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}
_FEATURES = 4 * 32768  # of a token, in a layer: what goes into and comes out of the widest products at a time
_VOCABULARY = 262144
LOGITS_BYTES = _VOCABULARY * 3 * 4
"""Of a sequence in a decode: as computed, as kept for all models of a GPU, and sorted, in float32."""


def outside_bytes(spec: GpuPoolSpec) -> int:
    """Of each accelerator of an engine, adapters left out."""
    if spec.memory.outside_slabs is not None:
        return spec.memory.outside_slabs
    if spec.accelerator.device == "cpu":
        base, decodes = _PROCESS[spec.backend], spec.max_batch
    else:  # a pass of decodes has room for PASS_ROWS sequences, whatever the batch
        base, decodes = CONTEXT_BYTES + spec.tuning.max_graphs * GRAPH_BYTES, PASS_ROWS
    rows = max(spec.tuning.prefill_chunk_tokens, decodes)
    activations = rows * _FEATURES * _ITEM[spec.accelerator.dtype]
    return base + activations + decodes * LOGITS_BYTES
