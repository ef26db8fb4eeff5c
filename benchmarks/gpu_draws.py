"""What drawing a token costs beside the likeliest one: steps of a layer with a large vocabulary, launched ahead."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.gpu_decode import step_s
from benchmarks.gpu_rig import EIGHT_B, begin, placed
from benchmarks.report import Row

from aegaeon_proto.engine.sampling import SamplingParams
from aegaeon_sidecar.sampling import SamplerState

BATCHES = (1, 16, 64)
CONTEXT = 64
KINDS = {
    "temperature": SamplingParams(temperature=0.8),
    "top-p 0.95": SamplingParams(temperature=0.8, top_p=0.95),
    "top-k 50": SamplingParams(temperature=0.8, top_k=50),
    "top-k 50, top-p 0.95": SamplingParams(temperature=0.8, top_k=50, top_p=0.95),
    "min-p 0.05": SamplingParams(temperature=0.8, min_p=0.05),
    "greedy, 5 logprobs": SamplingParams(logprobs=5),
}


def main() -> int:
    bench, _ = begin("gpu_draws", __doc__)
    config = bench.shape(EIGHT_B | {"num_hidden_layers": 1})
    batches = bench.sized(BATCHES, (1,))
    tokens = max(batches) * (CONTEXT + 64)
    with tempfile.TemporaryDirectory() as folder, placed(bench, Path(folder), config, tokens) as model:
        for batch in batches:
            greedy = step_s(bench, model, CONTEXT, [SamplerState()] * batch)
            bench.figures.add(Row(f"batch {batch}: step of one layer, greedy", greedy * 1e3, "ms"))
            for name, params in KINDS.items():
                seconds = step_s(bench, model, CONTEXT, [SamplerState(params) for _ in range(batch)])
                bench.figures.add(Row(f"batch {batch}: {name}, beyond it", (seconds - greedy) * 1e3, "ms"))
    return bench.status


if __name__ == "__main__":
    sys.exit(main())
