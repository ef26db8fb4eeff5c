"""Compiled kernels that a process keeps are bounded, whatever batches and models it computes."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
from aegaeon_sidecar.backends.rows import steady_product
from aegaeon_sidecar.memory.outside import outside_bytes

product = steady_product(torch.float32, threads=2)
weights = [torch.zeros(64 + 32 * number, 128) for number in range(18)]
before = outside_bytes()
with torch.inference_mode():
    for weight in weights:
        for rows in range(1, 65):
            product(torch.zeros(rows, 128), weight, None)
print((outside_bytes() - before) >> 20)
"""


def test_products_of_many_shapes_keep_few_kernels() -> None:
    """1,152 kernels, of which the defaults keep 1,024 twice: some 400 MiB."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 256
