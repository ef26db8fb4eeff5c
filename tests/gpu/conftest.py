"""Tests on a real GPU. Where there is none they are skipped with the reason; `make test-gpu` runs them."""

from __future__ import annotations

import pytest
import torch
from gpu.reasons import Reasons

from aegaeon_native import CudaDevice, NativeError
from aegaeon_sidecar.memory.gpu import open_gpu


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # xdist's workers report to the first process
        config.pluginmanager.register(Reasons(config), "reasons")


@pytest.fixture(scope="session")
def gpu() -> CudaDevice:
    try:
        found = open_gpu("cuda:0")
    except NativeError as error:
        pytest.skip(f"no GPU: {error}")
    if not torch.cuda.is_available():
        pytest.skip("the driver is there, but torch finds no CUDA device")
    assert found is not None
    torch.zeros(1, device="cuda:0")  # the runtime joins the context before anything is mapped
    return found
