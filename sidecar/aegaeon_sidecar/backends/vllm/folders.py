"""Checks of a model folder before vLLM reads it: kinds that are not served, with the reason.

vLLM would import the model's class first, which may fail on packages that are not installed and hide the reason.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from aegaeon_sidecar.domain.errors import UnsupportedError
from aegaeon_sidecar.models.fields import Fields
from aegaeon_sidecar.models.files import INDEX, SINGLE
from aegaeon_sidecar.models.placement import CONFIG

_SEES = ("vision_config", "vision_tower_cfg", "visual", "mm_vision_tower", "img_processor")
_HEARS = ("audio_config", "audio_processor", "speech_config")
_STATE = ("linear_attention", "mamba", "conv", "recurrent")
_NO_KERNEL = {
    "bitsandbytes": "bitsandbytes computes on GPUs alone",
    "torchao": "torchao's formats need its own package and its kernels",
    "gguf": "GGUF needs kernels for GPUs",
    "modelopt": "ModelOpt's formats (NVFP4, FP8) need kernels for GPUs",
    "modelopt_fp4": "NVFP4 needs kernels for GPUs",
}
_INSTEAD = "bring the model in 16 bits, or in GPTQ or AWQ with 4 bits"
_ENCODER = re.compile(r"Bert|BERT|Roberta|RoBERTa|Deberta|Electra|MPNet|BgeM3|Bidirectional|^Gte")


def check_folder(directory: Path) -> None:
    """Raises UnsupportedError for weights that are there, but in a format that is not read."""
    if (directory / SINGLE).exists() or (directory / INDEX).exists():
        return
    if ggufs := sorted(directory.glob("*.gguf")):
        raise UnsupportedError(
            f"{directory}: its weights are GGUF ({ggufs[0].name}), which is llama.cpp's format and not served; bring "
            "the model's safetensors, as its maker publishes them"
        )
    if (directory / "params.json").exists() or (directory / "consolidated.safetensors").exists():
        raise UnsupportedError(
            f"{directory}: it is in Mistral's own format (params.json, consolidated.safetensors), which is not served; "
            f"bring the files of the same model for transformers ({CONFIG}, {SINGLE})"
        )


def check_config(directory: Path) -> None:
    """Raises UnsupportedError for a model of which config.json alone shows that it is not served."""
    config = Fields.load(directory / CONFIG)
    names = config.value("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else "it"
    if _ENCODER.search(name) or config.value("use_bidirectional_attention"):
        raise UnsupportedError(f"{name} attends in both directions (an encoder); only decoders are served")
    for fields, what in ((_SEES, "images"), (_HEARS, "sound")):
        if any(config.value(field) for field in fields):
            raise UnsupportedError(
                f"{name} takes {what}; only text is served: bring a checkpoint of the family without {what}"
            )
    kinds = config.value("layer_types")
    if isinstance(kinds, list) and any(str(kind).startswith(_STATE) for kind in kinds):
        raise UnsupportedError(
            f"{name} keeps a state per sequence (state-space or hybrid); only paged attention is served"
        )
    if config.value("is_encoder_decoder"):
        raise UnsupportedError(f"{name} has an encoder; only decoders are served")
    _check_quantisation(config, name)


def _check_quantisation(config: Fields, name: str) -> None:
    settings = config.value("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if method == "compressed-tensors" and _has_eight_bit_floats(settings):
        raise UnsupportedError(f"{name} has weights of 8-bit floats, which are not served on CPUs; {_INSTEAD}")
    if isinstance(method, str) and method in _NO_KERNEL:
        raise UnsupportedError(f"{name} is quantised by {method}: {_NO_KERNEL[method]}; {_INSTEAD}")


def _has_eight_bit_floats(settings: dict[str, Any]) -> bool:
    """vLLM loads some of them on CPUs, and nothing has shown that it computes what they mean."""
    groups = settings.get("config_groups")
    weights = (
        [group.get("weights") for group in groups.values() if isinstance(group, dict)]
        if isinstance(groups, dict)
        else []
    )
    return any(isinstance(item, dict) and (item.get("type"), item.get("num_bits")) == ("float", 8) for item in weights)
