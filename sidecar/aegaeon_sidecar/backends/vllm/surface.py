"""Every name of vLLM that the sidecar uses, in one place; hooks.py lists them for a check without an import.

vLLM's current configuration, torch's default dtype, the class of parameters and the forward context belong to the
process: a thread that builds or runs a model holds `EXCLUSIVE`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import vllm._custom_ops as custom_ops
import vllm.model_executor.layers.utils as layer_utils
from torch import Tensor
from vllm import __version__ as VERSION  # noqa: N812  # a constant, as PLATFORM is
from vllm.config import VllmConfig, get_layers_from_vllm_config, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.model_executor.models.registry import _SPECULATIVE_DECODING_MODELS, ModelRegistry
from vllm.platforms import current_platform
from vllm.utils.network_utils import get_distributed_init_method, get_open_port
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    KVCacheLayout,
    KVCacheTensor,
    create_kv_cache_views,
)
from vllm.v1.worker.gpu_worker import init_worker_distributed_environment

from aegaeon_proto.pooling import Purpose, Task

EXCLUSIVE = threading.RLock()
GENERATES = Purpose(Task.GENERATE)
PLATFORM: str = current_platform.device_type
SPECULATIVE = frozenset(_SPECULATIVE_DECODING_MODELS)
Weights = Iterable[tuple[str, Tensor]]

__all__ = [
    "EXCLUSIVE",
    "GENERATES",
    "PLATFORM",
    "SPECULATIVE",
    "VERSION",
    "AttentionSpec",
    "CommonAttentionMetadata",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "attention_layers",
    "cache_view",
    "configured",
    "forward_context",
    "initialized",
    "new_config",
    "processed",
]


def new_config(
    directory: Path,
    architectures: Iterable[str],
    dtype: str,
    block_tokens: int,
    max_model_len: int,
    purpose: Purpose = GENERATES,
) -> Any:
    """A VllmConfig. One makes one model: layers register their names in it.

    `max_model_len` 0: the model's own. `purpose`: vLLM takes the head off what embeds, and gives a classifier its own.
    Code that a model directory brings is never run.
    """
    embeds = purpose.task is Task.EMBED
    for name in architectures:
        _import_class(name)
    return EngineArgs(
        model=str(directory),
        dtype=dtype,
        block_size=block_tokens,
        max_model_len=max_model_len or None,
        trust_remote_code=False,
        model_impl="vllm",
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1
        << 20,  # vLLM measures how much there is unless it is given a size; nothing is allocated
        load_format="safetensors",
        skip_tokenizer_init=True,
        runner="pooling" if embeds or purpose.classifies else "generate",
        convert="embed" if embeds else "classify" if purpose.classifies else "auto",
    ).create_engine_config()


def _import_class(architecture: str) -> None:
    """vLLM would ask a process of its own, which imports all of vLLM, what the class of this architecture is like."""
    registered = ModelRegistry.models.get(architecture)
    if registered is not None and architecture not in _imported:
        ModelRegistry.register_model(architecture, registered.load_model_cls())
        _imported.add(architecture)


@contextmanager
def configured(config: Any) -> Iterator[None]:
    """`config` is the process's current one."""
    with set_current_vllm_config(config):
        yield


@contextmanager
def _building(config: Any) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(set_default_torch_dtype(config.model_config.dtype))
        stack.enter_context(torch.device(config.device_config.device))
        stack.enter_context(set_current_vllm_config(config))
        yield


def initialized(config: Any) -> Any:
    """The model's modules, parameters not loaded."""
    _start_process()
    if _table_dtypes != [config.model_config.dtype]:
        _ROPE_DICT.clear()  # tables that models share are rounded to the dtype of whichever uses them first
        _table_dtypes[:] = [config.model_config.dtype]
    with _building(config):
        return initialize_model(config)


def processed(config: Any, model: Any) -> None:
    """What vLLM does to a model once its weights are loaded. Linears on a CPU are not packed: a packed copy would stay
    behind when the bytes of the parameters change."""
    with _building(config), _unpacked_linears():
        process_weights_after_loading(model, config.model_config, torch.device(config.device_config.device))


@contextmanager
def _unpacked_linears() -> Iterator[None]:
    onednn, sgl = custom_ops._supports_onednn, layer_utils.check_cpu_sgl_kernel
    custom_ops._supports_onednn, layer_utils.check_cpu_sgl_kernel = False, lambda *shape: False
    try:
        yield
    finally:
        custom_ops._supports_onednn, layer_utils.check_cpu_sgl_kernel = onednn, sgl


def attention_layers(config: Any) -> dict[str, Any]:
    """By name, in the order of the model."""
    return dict(get_layers_from_vllm_config(config, AttentionLayerBase))


def cache_view(memory: Tensor, layer: Any, spec: Any, capacity: int, block_bytes: int, offset: int) -> Tensor:
    """What `layer` takes for its KV cache: its page, at `offset` bytes, of each of `capacity` blocks of `memory`."""
    place = KVCacheTensor(
        size=len(memory), layers=[""], layer_stride=spec.page_size_bytes, block_stride=block_bytes, offset=offset
    )
    layouts = layer.get_attn_backend().supported_kv_cache_layouts() or (KVCacheLayout.LBNHC,)
    views: list[Tensor] = create_kv_cache_views(memory.view(torch.int8), spec, capacity, layouts[0], place)
    return views[0]


@contextmanager
def forward_context(config: Any, attention: dict[str, Any], slots: dict[str, Tensor], tokens: int) -> Iterator[None]:
    """Attention layers find in it, by their names, what their kernels need."""
    with set_forward_context(attention, config, num_tokens=tokens, slot_mapping=slots):
        yield


_imported: set[str] = set()
_started: list[str] = []
_table_dtypes: list[torch.dtype] = []


def _start_process() -> None:
    """Process groups of one rank, once. Of no model: after a dense one, a mixture of experts would lack its own."""
    if _started:
        return
    config = VllmConfig()
    with set_current_vllm_config(config):
        where = get_distributed_init_method("127.0.0.1", get_open_port())
        init_worker_distributed_environment(config, 0, where, 0, "gloo")
    _started.append(where)
