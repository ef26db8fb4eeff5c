"""`python -m benchmarks.peers.gguf_file FOLDER`: a Llama's safetensors as model.gguf beside them, in float32.

Runs in the peers' environment. The converter of llama.cpp knows tokenizers by a list of hashes; this one is not on it.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

_CONTROL, _NORMAL = 3, 1  # types of tokens in GGUF


def main(folder: Path) -> None:
    """Write it."""
    gguf: Any = import_module("gguf")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    _say_shape(writer, config)
    _say_tokens(writer, json.loads((folder / "tokenizer.json").read_text("utf-8")), config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(names.get_name(name, (".weight",)), _placed(name, tensor, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _say_shape(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _say_tokens(writer: Any, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL if token in special else _NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _placed(name: str, tensor: np.ndarray[Any, Any], config: dict[str, Any]) -> np.ndarray[Any, Any]:
    """llama.cpp rotates neighbours where transformers rotates halves: rows of queries and keys lie in its order."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    pairs = tensor.reshape(config[heads], 2, config["head_dim"] // 2, tensor.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(tensor.shape))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
