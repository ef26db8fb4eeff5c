"""Refusals of vLLM's models, each with the reason: their state is more than paged KV blocks."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aegaeon_proto.pooling import PoolingError, Purpose, Task, read_purpose
from aegaeon_sidecar.backends.vllm import kernels, surface
from aegaeon_sidecar.domain.errors import ConfigError, ModelError, SidecarError, UnsupportedError
from aegaeon_sidecar.models.fields import Fields

_PYDANTIC = re.compile(r"^\d+ validation errors? for \w+ (?:Value error, )?(.*?)(?: \[type=.*)?$")
_NO_EXPERTS = re.compile(r"^No (\w+) MoE backend supports")
# Of an operator that is declared, but not built.
_NO_KERNEL = re.compile(r"^_C\w*::(\w+)\(\) expected at most 0 argument")
# Of one that the library for this processor does not have.
_NOT_FOR_CPU = re.compile(r"^(?:'_OpNamespace' )?'_C\w*' object has no attribute '(\w+)'")

_FOUR_BITS = re.compile(r"wna16|convert_weight_packed_scale_zp|int4")
_WANTS_AVX512 = "; weights of 4 bits need a CPU with AVX-512: bring the model in 16 bits"

# By architecture: what vLLM's class computes otherwise than the model's authors, which no proof of hidden states shows.
_OTHERWISE = {"PhiMoEForCausalLM": "leaves out the bias of its last layer"}


def read_architectures(directory: Path) -> list[str]:
    """Read the architectures of config.json. Raises ConfigError."""
    config = Fields.load(directory / "config.json")
    names = config.value("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise config.wrong("architectures", "a list of names that vLLM knows")
    return names


def check_known(directory: Path, architectures: list[str]) -> None:
    """Raises UnsupportedError unless vLLM has a class for one of them, whose kind is served as far as its name says."""
    for name in architectures:
        if name in surface.MULTIMODAL:
            raise UnsupportedError(f"{name} takes images or sound; only text is served")
        if name in surface.SPECULATIVE:
            raise UnsupportedError(f"{name} drafts tokens for another model; speculative decoding is not served")
        if name in _OTHERWISE:
            raise UnsupportedError(
                f"vLLM {surface.VERSION}'s class of {name} {_OTHERWISE[name]}, so its tokens would not be the model's"
            )
    if any(surface.knows(name) for name in architectures):
        return
    if Fields.load(directory / "config.json").value("auto_map"):
        raise UnsupportedError("config.json asks for code of the model's own (auto_map), which is never run")
    raise UnsupportedError(f"vLLM {surface.VERSION} has no model of the architecture {', '.join(architectures):.100}")


def read_purpose_of(directory: Path, task: str) -> Purpose:
    """The task of a model: `task`, else that of its files. Raises ConfigError."""
    try:
        return read_purpose(directory, task)
    except PoolingError as error:
        raise ConfigError(f"{directory}/{error}") from error


def check_kind(config: Any, purpose: Purpose) -> None:
    """Raises UnsupportedError."""
    model = config.model_config
    names = ", ".join(model.architectures)
    if model.is_attention_free or model.has_inner_state or model.is_hybrid:
        raise UnsupportedError(
            f"{names} keeps a state per sequence (state-space or hybrid); only paged attention is served"
        )
    if model.use_mla:
        raise UnsupportedError(
            f"{names} has multi-head latent attention, whose kernels for CPUs compute prompts only whole and want each "
            "layer's cache in one piece or, with AMX, keep a packed copy of weights that would outlive a switch"
        )
    if model.is_encoder_decoder:
        raise UnsupportedError(f"{names} has an encoder; only decoders are served")
    if model.is_multimodal_model:
        raise UnsupportedError(f"{names} takes images or sound; only text is served")
    if purpose.pools and model.attn_type != "decoder":
        raise UnsupportedError(f"{names} attends in both directions ({model.attn_type}); only decoders are served")
    if model.runner_type != ("pooling" if purpose.task is Task.EMBED or purpose.classifies else "generate"):
        raise UnsupportedError(f"{names} is a {model.runner_type} model, which cannot be used for {purpose.task.value}")


def check_caches(specs: Mapping[str, Any]) -> Any:
    """The kind of cache of all layers. Raises ModelError unless every one has pages of the same size."""
    if not specs:
        raise ModelError("it has no attention layer, so there is no KV cache to keep")
    for name, spec in specs.items():
        other = isinstance(spec, surface.CrossAttentionSpec | surface.EncoderOnlyAttentionSpec)
        if other or not isinstance(spec, surface.AttentionSpec):
            raise ModelError(f"{name} has a {type(spec).__name__}; only decoders with paged attention are served")
    first = next(iter(specs.values()))
    for name, spec in specs.items():
        if (spec.page_size_bytes, spec.block_size) != (first.page_size_bytes, first.block_size):
            raise ModelError(f"{name}: its KV pages differ from those of other layers, which is not served")
    return first


def check_heads(layer: Any, spec: Any) -> None:
    """Raises ModelError where attention has no kernel for heads of this size, which vLLM finds at the first step."""
    backend = layer.get_attn_backend()
    sizes = backend.get_supported_head_sizes()
    if sizes and spec.head_size not in sizes:
        known = ", ".join(map(str, sizes))
        raise ModelError(
            f"{backend.get_name()} has no kernel for heads of {spec.head_size} features; it has for {known}"
        )


@contextmanager
def understood() -> Iterator[None]:
    """Turn an exception of vLLM about a model's files, which is that model's trouble alone, into a ModelError."""
    try:
        yield
    except (SidecarError, MemoryError):
        raise
    except Exception as error:  # whatever a loader does with a file that it does not understand
        raise ModelError(reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """One sentence for what vLLM raised about a model's files."""
    message = _PYDANTIC.sub(r"\1", " ".join(str(error).split()))
    if "trust_remote_code" in message or "custom code" in message:
        return "config.json asks for code of the model's own (auto_map), which is never run"
    if isinstance(error, ModuleNotFoundError):
        return (
            f"vLLM {surface.VERSION} imports its class with {error.name}, which is not installed; models that take "
            "images or sound need such packages, and only text is served"
        )
    if kernel := _NO_KERNEL.match(message):
        return f"vLLM {surface.VERSION} has no kernel {kernel[1]} on this device ({surface.PLATFORM})"
    if kernel := _NOT_FOR_CPU.match(message):
        advice = _WANTS_AVX512 if _FOUR_BITS.search(kernel[1]) else ""
        return (
            f"vLLM {surface.VERSION} has no kernel {kernel[1]} for this processor ({kernels.LIBRARY.name}, "
            f"{kernels.PROCESSOR}){advice}"
        )
    if experts := _NO_EXPERTS.match(message):
        return f"vLLM {surface.VERSION} has no kernel for {experts[1]} experts on this device ({surface.PLATFORM})"
    return f"vLLM {surface.VERSION} does not serve it: {type(error).__name__}: {message or _place_of(error):.300}"


def _place_of(error: Exception) -> str:
    """The place of an error without a message: most often an assertion about tensors."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"raised in {frames[-1].name} ({Path(frames[-1].filename).name})" if frames else "raised"
