"""The host's part of a long prompt's prefill in the torch backend: index tensors of every chunk, without a model.

On a GPU it lies between one chunk's kernels and the next one's, so it must be small beside them: a chunk of 512 tokens
of an 8B takes an H100 some 15 ms, 64 of them a second. Seconds of the processor, so that neighbours count for little.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import torch
from benchmarks.report import Row, report

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch.step_layout import LayoutBuilder
from aegaeon_sidecar.models.layout import KvShape

SHAPE = KvShape(32, 16, 8, 128, "bfloat16")  # of an 8B
CHUNK, ROUNDS = 512, 15
PROMPTS = (7680, 32768)
LIMIT_S = 0.020


def plan_s(prompt: int) -> float:
    """Median over ROUNDS of all chunks of such a prompt."""
    builder = LayoutBuilder(SHAPE, [None], 128256, torch.device("cpu"), invariant=True)
    tokens = list(range(prompt))
    blocks = np.random.default_rng(0).permutation(prompt // SHAPE.block_tokens).astype(np.int32)
    chunks = [
        StepInput(tokens[first : first + CHUNK], first, blocks[: (first + CHUNK) // SHAPE.block_tokens], None)
        for first in range(0, prompt, CHUNK)
    ]
    times = []
    for _ in range(ROUNDS):
        begin = time.thread_time()
        for chunk in chunks:
            builder.build([chunk], [0], len(blocks))
        times.append(time.thread_time() - begin)
    return statistics.median(times)


def main() -> int:
    rows = [
        Row(f"planning a prompt of {prompt} tokens, chunks of {CHUNK}", plan_s(prompt) * 1e3, "ms", limit, "<=")
        for prompt, limit in ((PROMPTS[0], None), (PROMPTS[1], LIMIT_S * 1e3))
    ]
    return 0 if report("prefill_plan", rows) else 1


if __name__ == "__main__":
    sys.exit(main())
