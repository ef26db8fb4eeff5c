"""The names of vLLM that the sidecar uses, but those of kernels.py and norm_kernels.py; hooks.py lists them.

What of it belongs to the whole process is in exclusive.py: a thread that builds or runs a model holds `EXCLUSIVE`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import vllm._custom_ops as custom_ops
import vllm.forward_context as forward_contexts
import vllm.model_executor.layers.utils as layer_utils
from torch import Tensor
from vllm import __version__ as VERSION  # noqa: N812  # a constant, as PLATFORM is
from vllm.config import LoRAConfig, VllmConfig, get_layers_from_vllm_config, set_current_vllm_config
from vllm.config.model import iter_architecture_defaults, try_match_architecture_defaults
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import create_forward_context
from vllm.lora.lora_model import LoRAModel
from vllm.lora.model_manager import LoRAModelManager
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.utils import parse_fine_tuned_lora_name
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.model_executor.models.interfaces import supports_lora
from vllm.model_executor.models.registry import (
    _MULTIMODAL_MODELS,
    _PREVIOUSLY_SUPPORTED_MODELS,
    _SPECULATIVE_DECODING_MODELS,
    ModelRegistry,
)
from vllm.platforms import current_platform
from vllm.transformers_utils.config import get_config
from vllm.utils.network_utils import get_distributed_init_method, get_open_port
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder as LiveMetadataBuilder
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
from aegaeon_sidecar.backends.vllm.exclusive import EXCLUSIVE, Building
from aegaeon_sidecar.backends.vllm.norm_kernels import use_norm_kernels
from aegaeon_sidecar.backends.vllm.tables import Tables
from aegaeon_sidecar.domain.errors import ModelError

GENERATES = Purpose(Task.GENERATE)
PLATFORM: str = current_platform.device_type
MULTIMODAL = frozenset(_MULTIMODAL_MODELS)
SPECULATIVE = frozenset(_SPECULATIVE_DECODING_MODELS)
Weights = Iterable[tuple[str, Tensor]]
Setting = Callable[[], AbstractContextManager[Any]]
configured: Callable[[Any], AbstractContextManager[Any]] = set_current_vllm_config
"""its argument is the process's current configuration"""

__all__ = [
    "EXCLUSIVE",
    "VERSION",
    "AttentionSpec",
    "CommonAttentionMetadata",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "LinearBase",
    "LiveMetadataBuilder",
    "VocabParallelEmbedding",
]
"""names of others that modules take from here, beside what is defined below"""


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
    get_config(directory, trust_remote_code=False)  # what cannot be read fails here: vLLM sleeps, and tries it again
    with EXCLUSIVE:
        return EngineArgs(
            model=str(directory),
            dtype=dtype,
            block_size=block_tokens,
            max_model_len=max_model_len or None,
            trust_remote_code=False,
            model_impl="vllm",
            enforce_eager=True,
            enable_prefix_caching=False,
            kv_cache_memory_bytes=1 << 20,  # vLLM measures how much there is unless it is given a size, and takes none
            load_format="safetensors",
            skip_tokenizer_init=True,
            runner="pooling" if embeds or purpose.classifies else "generate",
            convert="embed" if embeds else "classify" if purpose.classifies else "auto",
        ).create_engine_config()


def knows(architecture: str) -> bool:
    """True when vLLM has a class for it, converts another class to it, or reports itself why it no longer does."""
    if architecture in ModelRegistry.models or architecture in _PREVIOUSLY_SUPPORTED_MODELS:
        return True
    suffix, _ = try_match_architecture_defaults(architecture) or ("", None)
    bases = (architecture.removesuffix(suffix) + of_base for of_base, _ in iter_architecture_defaults())
    return suffix != "" and any(base in ModelRegistry.models for base in bases)


def _import_class(architecture: str) -> None:
    """vLLM would ask a process of its own, which imports all of vLLM, what the class of this architecture is like."""
    registered = ModelRegistry.models.get(architecture)
    if registered is not None and architecture not in _imported:
        ModelRegistry.register_model(architecture, registered.load_model_cls())
        _imported.add(architecture)


def import_quantisation() -> None:
    """vLLM imports all of it at the first quantised model, while it builds that one and no step can run."""
    get_quantization_config("gptq")


@contextmanager
def _building(config: Any) -> Iterator[None]:
    device = torch.device(config.device_config.device)
    with set_default_torch_dtype(config.model_config.dtype), device, set_current_vllm_config(config):
        yield


def initialized(config: Any, *settings: Setting) -> Any:
    """The model's modules, parameters not loaded."""
    with Building(*settings):
        _start_process()
        if _table_dtypes != [config.model_config.dtype]:
            # Tables that models share are rounded to the dtype of whichever uses them first.
            rotary_embedding._ROPE_DICT = Tables()
            _table_dtypes[:] = [config.model_config.dtype]
        with _building(config):
            return initialize_model(config)


def loaded(config: Any, model: Any, weights: Weights, *settings: Setting) -> set[str] | None:
    """Run the model's loader, others in between; the names of the parameters that it says it has written."""
    with Building(*settings, partial(configured, config)) as building:
        names: set[str] | None = model.load_weights(building.apart(weights))
        return names


def processed(config: Any, model: Any, *settings: Setting) -> None:
    """Run vLLM's processing of a model after loading its weights, module by module with other threads in between.
    Linears on a CPU are not packed: a packed copy would keep old values when the bytes of the parameters change."""
    device = torch.device(config.device_config.device)
    with Building(*settings, partial(_building, config), _unpacked_linears) as building:
        model.named_modules = lambda *args, **named: building.apart(type(model).named_modules(model, *args, **named))
        try:
            process_weights_after_loading(model, config.model_config, device)
        finally:
            del model.named_modules


@contextmanager
def _unpacked_linears() -> Iterator[None]:
    onednn, sgl = custom_ops._supports_onednn, layer_utils.check_cpu_sgl_kernel
    custom_ops._supports_onednn, layer_utils.check_cpu_sgl_kernel = False, lambda *shape: False
    try:
        yield
    finally:
        custom_ops._supports_onednn, layer_utils.check_cpu_sgl_kernel = onednn, sgl


def attention_layers(config: Any) -> dict[str, Any]:
    """The attention layers by name, in the order of the model; their kernels are called without torch's dispatcher,
    which a compiler needs, and none is used."""
    layers = dict(get_layers_from_vllm_config(config, AttentionLayerBase))
    for layer in layers.values():
        layer.use_direct_call = True
    return layers


def shares_kv_of(layer: Any) -> str | None:
    """The layer whose KV this one reads, by name; it writes none. None: it has its own."""
    name: str | None = getattr(layer, "kv_sharing_target_layer_name", None)
    return name


def cache_view(memory: Tensor, layer: Any, spec: Any, capacity: int, block_bytes: int, offset: int) -> Tensor:
    """The KV cache that `layer` takes: its page, at `offset` bytes, of each of `capacity` blocks of `memory`."""
    place = KVCacheTensor(
        size=len(memory), layers=[""], layer_stride=spec.page_size_bytes, block_stride=block_bytes, offset=offset
    )
    layouts = layer.get_attn_backend().supported_kv_cache_layouts() or (KVCacheLayout.LBNHC,)
    views: list[Tensor] = create_kv_cache_views(memory.view(torch.int8), spec, capacity, layouts[0], place)
    return views[0]


def forward_context(config: Any, attention: dict[str, Any], slots: dict[str, Tensor]) -> Any:
    """Attention layers find in it, by their names, what their kernels need, in one step or in many. What vLLM adds of
    platforms, data parallelism and its log is not asked for: it takes longer than all the rest."""
    return create_forward_context(attention, config, slot_mapping=slots)


def forward(model: Any, context: Any, tokens: Tensor, positions: Tensor) -> Tensor:
    """The hidden states of a step, with what `forward_context` gave. vLLM's own manager of contexts takes longer than
    the rest of this, and nothing looks at hooks of modules."""
    context.moe_layer_index = 0  # layers of experts count themselves in a step
    forward_contexts._forward_context = context
    try:
        hidden: Tensor = model.forward(
            input_ids=tokens, positions=positions, intermediate_tensors=None, inputs_embeds=None
        )
    finally:
        forward_contexts._forward_context = None
    return hidden


# ---- adapters ------------------------------------------------------------------------------------------------------


def adapter_settings(config: Any, max_rank: int, slots: int) -> Any:
    """A LoRAConfig, for adapters in the model's own dtype."""
    bounds: Any = {"max_lora_rank": max_rank, "max_loras": slots, "max_cpu_loras": slots}
    settings = LoRAConfig(**bounds)
    settings.verify_with_model_config(config.model_config)
    return settings


def wrapped(config: Any, model: Any, settings: Any) -> Any:
    """vLLM's manager of the model's adapters; it has put layers with slots in the place of the linear ones.

    Raises ModelError where it has none for them; nothing has changed then.
    """
    name = type(model).__name__
    if not supports_lora(model):
        raise ModelError(f"vLLM {VERSION} has no adapters for {name}")
    linear = (path for path, module in model.named_modules() if isinstance(module, LinearBase))
    settings.target_modules = sorted({path.rpartition(".")[2] for path in linear})
    with _building(config):
        return LoRAModelManager(
            model, 1, 8, config.model_config.get_vocab_size(), settings, torch.device("cpu"), config
        )


def renames(model: Any) -> Any:
    """The mapping from names of the files' tensors to names of the model's layers; None: they are the same."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    return None if mapper is None else mapper.get_rename_mapper()


def adapter_module(name: str, mapper: Any) -> tuple[str, bool]:
    """The layer of an adapter's tensor, and whether it is the first of its two matrices. Raises ValueError."""
    module, is_a = parse_fine_tuned_lora_name(name, mapper)
    return str(module), bool(is_a)


def adapter_helper(document: bytes, settings: Any) -> Any:
    """Parse adapter_config.json with vLLM. Raises ValueError for settings that it does not support, or not with slots
    of this rank, and any error that values of other types cause."""
    fields = json.loads(document)
    if not isinstance(fields, dict):
        raise ValueError("is not a JSON object")
    helper = PEFTHelper.from_dict(fields)
    helper.validate_legal(settings)
    return helper


def fill_slot(manager: Any, number: int, tensors: Mapping[str, Tensor], helper: Any, settings: Any) -> None:
    """Copy an adapter's tensors, which are scaled, into a free slot. `number`: vLLM's name of it from here on."""
    model = manager.model
    loaded = LoRAModel.from_lora_tensors(
        number,
        dict(tensors),
        helper,
        device="cpu",
        dtype=settings.lora_dtype,
        weights_mapper=renames(model),
        skip_prefixes=getattr(model, "lora_skip_prefixes", None),
    )
    manager.add_adapter(loaded)
    manager.activate_adapter(number)
    loaded.loras.clear()  # the slot has them


_imported: set[str] = set()
_started: list[str] = []
_table_dtypes: list[torch.dtype] = []


def _start_process() -> None:
    """Process groups of one rank and the kernels of norms, once. Groups of no model: after a dense one, a mixture of
    experts would lack its own."""
    if _started:
        return
    config = VllmConfig()
    with set_current_vllm_config(config):
        where = get_distributed_init_method("127.0.0.1", get_open_port())
        init_worker_distributed_environment(config, 0, where, 0, "gloo")
    use_norm_kernels()
    _started.append(where)
