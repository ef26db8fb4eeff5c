"""What an engine process loads and keeps: no compiler; few kernels, whatever batches and models it computes."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import torch
import aegaeon_sidecar.process
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
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    """Lines of the program."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_products_of_many_shapes_keep_few_kernels(said: list[str]) -> None:
    """1,152 kernels, of which the defaults keep 1,024 twice: some 400 MiB."""
    assert int(said[0]) < 256


def test_an_engine_without_a_gpu_starts_without_what_it_does_not_need(said: list[str]) -> None:
    """torch.compile, the hub's client and an HTTP server: two fifths of the CPU time that a start takes."""
    loaded = set(said[1].split())
    assert "aegaeon_sidecar.backends.torch.backend" in loaded
    assert not loaded & {"torch._dynamo", "triton", "huggingface_hub", "aiohttp", "transformers"}
