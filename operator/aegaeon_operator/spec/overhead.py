"""Estimate of an engine's memory outside its slabs, for manifests without `outsideSlabs`; engines compare it with
their measurement.

It is made before any model is known, so it allows for wide models: the measurement is usually well below.
"""

from __future__ import annotations

from aegaeon_operator.spec.engines import PASS_ROWS
from aegaeon_operator.spec.resources import GpuPoolSpec
from aegaeon_proto.backends import BACKENDS

_MIB = 1 << 20
# On a GPU: the driver's context, workspaces of libraries and compiled kernels.
CONTEXT_BYTES = 1536 * _MIB
GRAPH_BYTES = 4 * _MIB
"""Memory of a captured decode. On an H200 the graph of a model with 32 layers took less than 3 MiB."""
_ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}
_FEATURES = 4 * 32768  # of a token, in a layer: inputs and outputs of the widest products
_VOCABULARY = 262144
LOGITS_BYTES = _VOCABULARY * 3 * 4
"""Logits of a sequence in a decode, in float32: as computed, as kept for all models of a GPU, and sorted."""


def outside_bytes(spec: GpuPoolSpec) -> int:
    """Return the memory outside the slabs of each accelerator of an engine, without adapters."""
    if spec.memory.outside_slabs is not None:
        return spec.memory.outside_slabs
    tuning = spec.tuning
    if spec.accelerator.device == "cpu":
        base, decodes = BACKENDS[spec.backend].process_bytes, spec.max_batch
    else:  # a pass of decodes has room for PASS_ROWS sequences, whatever the batch
        base, decodes = CONTEXT_BYTES + tuning.max_graphs * GRAPH_BYTES, PASS_ROWS
    rows = max(tuning.prefill_chunk_tokens, decodes, tuning.max_pooled_tokens or 0)
    activations = rows * _FEATURES * _ITEM[spec.accelerator.dtype]
    return base + activations + decodes * LOGITS_BYTES
