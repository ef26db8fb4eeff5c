"""Parsers of the engine: files of a model, lists of files of a server, credentials, commands of the scheduler."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from fuzz.shape import Draw, changed, json_bytes, json_input, message, raw, received
from fuzz.target import One, Target

_HEADERS = [
    {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "__metadata__": {"format": "pt"}},
    {
        "a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]},
        "b": {"dtype": "F16", "shape": [], "data_offsets": [8, 10]},
        "c": {"dtype": "F32", "shape": [0], "data_offsets": [10, 10]},
    },
]
_HEADER_WORDS = ("dtype", "shape", "data_offsets", "F32", "BF16", "F16", "__metadata__", "a", "b")
_CONFIGS = [
    {
        "architectures": [name], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu",
        "attention_bias": False, "rope_scaling": scaling, "use_sliding_window": True, "sliding_window": 8,
        "max_window_layers": 1, "layer_types": ["full_attention", "sliding_attention"],
    }
    for name in ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
    for scaling in (
        None,
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1},
    )
]  # fmt: skip


def _header(home: Path) -> One:
    from aegaeon_sidecar.domain.errors import WeightsError
    from aegaeon_sidecar.models.header import read_header

    path = home / "model.safetensors"

    def feed(data: bytes) -> None:
        body = raw(data)
        if body is None:
            draw = Draw(data[1:])
            header = json_bytes(changed(draw, _HEADERS, _HEADER_WORDS))
            length = draw.one_of((len(header),) * 5 + (len(header) - 1, 0, 2**31, 2**63, 2**64 - 1))
            body = struct.pack("<Q", length) + header + bytes(draw.one_of((10, 16, 0, 100)))
        path.write_bytes(body)
        try:
            tensors = read_header(path)
        except WeightsError as error:
            assert str(path) in str(error)
            assert len(str(error)) < 4096, "a refusal as long as the file"
            return
        assert len({tensor.name for tensor in tensors}) == len(tensors)
        end = 8 + int.from_bytes(body[:8], "little")
        for tensor in tensors:  # back to back, inside the file, each byte once
            assert tensor.offset == end
            end += tensor.nbytes
        assert end == len(body)

    return feed


def _config(home: Path) -> One:
    from aegaeon_sidecar.domain.errors import ModelError
    from aegaeon_sidecar.models.config import read_spec, serve_length

    words = tuple({key for config in _CONFIGS for key in config} | {"factor", "rope_type", "rope_parameters", "yarn"})

    def feed(data: bytes) -> None:
        (home / "config.json").write_bytes(json_input(data, _CONFIGS, words))
        try:
            spec = read_spec(home)
            served = serve_length(spec, home, 0)
        except ModelError as error:
            assert str(home) in str(error)
            assert len(str(error)) < 8192, "a refusal as long as the file"
            return
        assert served >= 1
        assert len(spec.windows) == spec.layers
        assert spec.heads % spec.kv_heads == 0
        assert spec.head_dim % 2 == 0

    return feed


def _index(home: Path) -> One:
    from aegaeon_sidecar.domain.errors import ModelError
    from aegaeon_sidecar.models.files import _read_index

    documents = [
        {
            "metadata": {"total_size": 9},
            "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "x.safetensors"},
        }
    ]

    def feed(data: bytes) -> None:
        (home / "model.safetensors.index.json").write_bytes(
            json_input(data, documents, ("weight_map", "a", "../x.safetensors", ".safetensors", "/x.safetensors"))
        )
        try:
            shards = _read_index(home)
        except ModelError:
            return
        assert shards
        assert all(path.parent == home for path in shards), shards

    return feed


def _sums(_: Path) -> One:
    from aegaeon_sidecar.weights.remote import parse_sums

    def feed(data: bytes) -> None:
        for name, digest in parse_sums(data[1:].decode("utf-8", "replace")).items():
            assert re.fullmatch("[0-9a-f]{64}", digest)
            assert "/" not in name

    return feed


def _credentials(home: Path) -> One:
    from aegaeon_proto.credentials import CredentialsError, s3_keys, token_of

    file = home / "credentials"

    def feed(data: bytes) -> None:
        file.write_bytes(data[1:])
        secret = file.read_bytes().strip()
        for read in (token_of, s3_keys):
            try:
                value = read(str(file))
            except CredentialsError as error:
                text = str(error).encode()
                assert len(secret) < 12 or secret not in text, "a refusal that quotes the secret"
                continue
            if isinstance(value, str):
                assert re.fullmatch("[!-~]*", value), "a token that is no header"

    return feed


def _commands(_: Path) -> One:
    """Commands of a scheduler, applied one after the other to one state, as Engine.Attach brings them."""
    from aegaeon_proto.codec.commands import command_from
    from aegaeon_proto.engine.commands import Amend, Open
    from aegaeon_proto.engine.commands import Turn as Asked
    from aegaeon_proto.v1 import engine_pb2
    from aegaeon_sidecar.domain.errors import SidecarError
    from aegaeon_sidecar.engine.opening import open_sequence
    from aegaeon_sidecar.engine.turn import Turn
    from aegaeon_sidecar.models.placement import Layout

    layout = Layout(1024, (), "f32-1x8x16", 512, 16, 128, ())
    words = ("r", "s", "m", "engine-0")

    def feed(data: bytes) -> None:
        draw = Draw(data[1:])
        command = received(raw(data), draw, engine_pb2.Command, words)
        if command is None:
            return
        body = command_from(command).body
        if isinstance(body, Open):
            try:
                sequence = open_sequence(body, layout)
            except SidecarError:
                return
            assert 0 <= sequence.max_output <= layout.max_model_len
        elif isinstance(body, Asked):
            turn = Turn.of(command.id, body)
            amend = engine_pb2.Command(amend=message(draw, engine_pb2.Amend, words))
            change = command_from(amend).body
            assert isinstance(change, Amend)
            turn.amend(change)
            assert set(turn.waiting()) <= {part.key for part in turn.prefill} | set(turn.decode)

    return feed


_COMMANDS = ("aegaeon_proto.codec", "aegaeon_sidecar.engine.opening", "aegaeon_sidecar.engine.turn")
TARGETS = (
    Target("safetensors_header", _header, ("aegaeon_sidecar.models",)),
    Target("model_config", _config, ("aegaeon_sidecar.models",)),
    Target("weights_index", _index, ("aegaeon_sidecar.models",)),
    Target("sha256sums", _sums, ("aegaeon_sidecar.weights.remote",)),
    Target("credentials", _credentials, ("aegaeon_proto.credentials",)),
    Target("engine_commands", _commands, _COMMANDS),
)
