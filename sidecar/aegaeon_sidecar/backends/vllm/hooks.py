"""The names of vLLM that surface.py and norm_kernels.py use, checked in its source: without an import or a GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Hook:
    """A function, method or class (`name`, dotted) of a file of vLLM, and the arguments or fields that are used."""

    file: str
    name: str
    used: tuple[str, ...] = ()


_ENGINE_ARGUMENTS = (
    "model dtype block_size max_model_len trust_remote_code model_impl enforce_eager enable_prefix_caching "
    "kv_cache_memory_bytes load_format skip_tokenizer_init runner convert"
)
_METADATA = (
    "query_start_loc query_start_loc_cpu seq_lens num_reqs num_actual_tokens max_query_len max_seq_len "
    "block_table_tensor slot_mapping causal positions is_prefilling seq_lens_cpu_upper_bound"
)
HOOKS = (
    Hook("engine/arg_utils.py", "EngineArgs", tuple(_ENGINE_ARGUMENTS.split())),
    Hook("engine/arg_utils.py", "EngineArgs.create_engine_config", ("self",)),
    Hook("transformers_utils/config.py", "get_config", ("model", "trust_remote_code")),
    Hook("config/vllm.py", "VllmConfig"),
    Hook("config/vllm.py", "set_current_vllm_config", ("vllm_config",)),
    Hook("config/vllm.py", "get_layers_from_vllm_config", ("vllm_config", "layer_type")),
    Hook("v1/worker/gpu_worker.py", "init_worker_distributed_environment",
         ("vllm_config", "rank", "distributed_init_method", "local_rank", "backend")),
    Hook("utils/network_utils.py", "get_distributed_init_method", ("ip", "port")),
    Hook("utils/network_utils.py", "get_open_port"),
    Hook("utils/torch_utils.py", "set_default_torch_dtype", ("dtype",)),
    Hook("model_executor/model_loader/utils.py", "initialize_model", ("vllm_config",)),
    Hook("model_executor/model_loader/utils.py", "process_weights_after_loading",
         ("model", "model_config", "target_device")),
    Hook("model_executor/models/registry.py", "_ModelRegistry.register_model", ("self", "model_arch", "model_cls")),
    Hook("model_executor/models/registry.py", "_LazyRegisteredModel.load_model_cls", ("self",)),
    Hook("model_executor/layers/quantization/__init__.py", "get_quantization_config", ("quantization",)),
    Hook("model_executor/layers/utils.py", "check_cpu_sgl_kernel", ("n", "k", "dtype")),
    Hook("model_executor/layers/attention_layer_base.py", "AttentionLayerBase.get_attn_backend", ("self",)),
    Hook("model_executor/layers/attention_layer_base.py", "AttentionLayerBase.get_kv_cache_spec",
         ("self", "vllm_config")),
    Hook("model_executor/layers/attention_layer_base.py", "AttentionLayerBase.bind_kv_cache", ("self", "kv_cache")),
    Hook("v1/attention/backend.py", "AttentionBackend.get_builder_cls"),
    Hook("v1/attention/backend.py", "AttentionBackend.full_cls_name"),
    Hook("v1/attention/backend.py", "AttentionBackend.get_supported_head_sizes"),
    Hook("v1/attention/backend.py", "AttentionBackend.supported_kv_cache_layouts"),
    Hook("v1/attention/backend.py", "AttentionMetadataBuilder.build", ("self", "common_prefix_len",
         "common_attn_metadata")),
    Hook("v1/attention/backends/cpu_attn.py", "CPUAttentionMetadataBuilder"),
    Hook("v1/attention/backend.py", "AttentionMetadataBuilder.build_for_cudagraph_capture",
         ("self", "common_attn_metadata")),
    Hook("v1/attention/backend.py", "CommonAttentionMetadata", tuple(_METADATA.split())),
    Hook("v1/kv_cache_interface.py", "create_kv_cache_views",
         ("raw", "spec", "num_blocks", "layout", "kv_cache_tensor")),
    Hook("v1/kv_cache_interface.py", "KVCacheTensor", ("size", "layers", "layer_stride", "block_stride", "offset")),
    Hook("forward_context.py", "ForwardContext",
         ("no_compile_layers", "attn_metadata", "slot_mapping", "moe_layer_index")),
    Hook("forward_context.py", "create_forward_context", ("attn_metadata", "vllm_config", "slot_mapping")),
    Hook("ir/op.py", "IrOp.register_impl", ("self", "provider", "supported", "supports_args")),
    Hook("ir/op.py", "IrOp.set_default", ("self", "priority")),
    Hook("ir/op.py", "set_default_torch_wrap", ("enable",)),
    Hook("ir/ops/layernorm.py", "rms_norm", ("x", "weight", "epsilon", "variance_size")),
    Hook("ir/ops/layernorm.py", "fused_add_rms_norm", ("x", "x_residual", "weight", "epsilon", "variance_size")),
    Hook("config/lora.py", "LoRAConfig", ("max_lora_rank", "max_loras", "max_cpu_loras")),
    Hook("config/lora.py", "LoRAConfig.verify_with_model_config", ("self", "model_config")),
    Hook("model_executor/models/interfaces.py", "supports_lora", ("model",)),
    Hook("model_executor/models/utils.py", "WeightsMapper.get_rename_mapper", ("self",)),
    Hook("lora/utils.py", "parse_fine_tuned_lora_name", ("name", "weights_mapper")),
    Hook("lora/peft_helper.py", "PEFTHelper.from_dict", ("config_dict",)),
    Hook("lora/peft_helper.py", "PEFTHelper.validate_legal", ("self", "lora_config")),
    Hook("lora/peft_helper.py", "PEFTHelper.get_rank_and_scaling", ("self", "module_name")),
    Hook("lora/lora_model.py", "LoRAModel.from_lora_tensors",
         ("lora_model_id", "tensors", "peft_helper", "device", "dtype", "weights_mapper", "skip_prefixes")),
    Hook("lora/model_manager.py", "LoRAModelManager.__init__",
         ("self", "model", "max_num_seqs", "max_num_batched_tokens", "vocab_size", "lora_config", "device",
          "vllm_config")),
    Hook("lora/model_manager.py", "LoRAModelManager.add_adapter", ("self", "adapter")),
    Hook("lora/model_manager.py", "LoRAModelManager.activate_adapter", ("self", "lora_id")),
    Hook("lora/model_manager.py", "LoRAModelManager.remove_adapter", ("self", "adapter_id")),
    Hook("lora/layers/base.py", "BaseLayerWithLoRA.set_mapping", ("self", "punica_wrapper")),
    Hook("lora/punica_wrapper/punica_base.py", "PunicaWrapperABC.add_lora_linear",
         ("self", "y", "x", "lora_a_stacked", "lora_b_stacked", "scale", "output_slices")),
)  # fmt: skip

VARIABLES = (
    ("_custom_ops.py", "_supports_onednn"),
    ("forward_context.py", "_forward_context"),
    ("model_executor/layers/rotary_embedding/__init__.py", "_ROPE_DICT"),
    ("model_executor/models/registry.py", "_MULTIMODAL_MODELS"),
    ("model_executor/models/registry.py", "_PREVIOUSLY_SUPPORTED_MODELS"),
    ("model_executor/models/registry.py", "_SPECULATIVE_DECODING_MODELS"),
    ("model_executor/models/registry.py", "ModelRegistry"),
)


def installed() -> Path | None:
    """The folder of the vLLM that is installed; None without one. Imports nothing."""
    package = find_spec("vllm")
    return None if package is None or package.origin is None else Path(package.origin).parent


def differences(root: Path) -> Iterator[str]:
    """Differences of the vLLM in this folder from HOOKS and VARIABLES: missing names and other arguments."""
    for file, name in VARIABLES:
        if not (root / file).is_file() or name not in _assigned(ast.parse((root / file).read_text("utf-8"))):
            yield f"{name} is not in {file}"
    for hook in HOOKS:
        path = root / hook.file
        node = _find(ast.parse(path.read_text("utf-8")), hook.name) if path.is_file() else None
        if node is None:
            yield f"{hook.name} is not in {hook.file}"
            continue
        known, required = _fields(node) if isinstance(node, ast.ClassDef) else _parameters(node)
        unknown = [name for name in hook.used if name not in known]
        lacking = [name for name in required if name not in hook.used and name not in ("self", "cls")]
        if unknown or (lacking and hook.used):
            yield f"{hook.name} has no {', '.join(unknown)}" if unknown else f"{hook.name} wants {', '.join(lacking)}"


def _assigned(tree: ast.Module) -> set[str]:
    """Names of a module's variables."""
    targets: list[ast.expr] = [statement.target for statement in tree.body if isinstance(statement, ast.AnnAssign)]
    targets += [target for statement in tree.body if isinstance(statement, ast.Assign) for target in statement.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


Definition = ast.ClassDef | ast.FunctionDef


def _find(tree: ast.AST, dotted: str) -> Definition | None:
    node: ast.AST | None = tree
    for part in dotted.split("."):
        body = getattr(node, "body", [])
        node = next(
            (statement for statement in body if isinstance(statement, Definition) and statement.name == part), None
        )
    return node if isinstance(node, Definition) else None


def _fields(node: ast.ClassDef) -> tuple[set[str], list[str]]:
    """Fields of a dataclass, and those without a default."""
    fields = [field for field in node.body if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)]
    named = {field: field.target.id for field in fields if isinstance(field.target, ast.Name)}
    return set(named.values()), [name for field, name in named.items() if field.value is None]


def _parameters(node: ast.FunctionDef) -> tuple[set[str], list[str]]:
    """Parameters of a function, and those without a default."""
    plain = [argument.arg for argument in node.args.args]
    keywords = [argument.arg for argument in node.args.kwonlyargs]
    required = plain[: len(plain) - len(node.args.defaults)]
    required += [name for name, default in zip(keywords, node.args.kw_defaults, strict=True) if default is None]
    return {*plain, *keywords}, required
