"""What a sidecar says of its device: engines of one make share what is learned of their speed, others do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from aegaeon_sidecar.memory.gpu import make_of


@dataclass
class Gpu:
    name: str
    total_bytes: int


H100, A10 = Gpu("NVIDIA H100 80GB HBM3", 79 << 30), Gpu("NVIDIA A10", 22 << 30)


@pytest.mark.parametrize(
    ("gpus", "make"),
    [
        ((None,), "cpu"),
        ((None, None), "cpu x 2"),
        ((H100,), "NVIDIA H100 80GB HBM3, 79 GiB"),
        ((A10, A10), "NVIDIA A10, 22 GiB x 2"),
        ((H100, A10), "NVIDIA H100 80GB HBM3, 79 GiB + NVIDIA A10, 22 GiB x 2"),
    ],
)
def test_a_make_is_name_and_memory_of_the_gpu_wherever_it_is_plugged_in(gpus: Any, make: str) -> None:
    assert make_of(gpus) == make
