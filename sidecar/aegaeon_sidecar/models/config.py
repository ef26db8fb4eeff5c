"""config.json as a frozen DecoderSpec: everything that the decoder and the memory need to know about a model.

The four architectures are one decoder with switches; an architecture is a row of ARCHITECTURES. Unsupported fields
are refused, because ignoring one would change the output silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aegaeon_proto.pooling import PoolingError, Purpose, Task, read_purpose
from aegaeon_sidecar.domain.errors import ConfigError, ConfigMissingError
from aegaeon_sidecar.models.fields import Fields
from aegaeon_sidecar.models.rope import Rope, read_rope

MOST_SEQUENCE_TOKENS = 1 << 24  # a table of blocks has a place for each block that a sequence can have
ABSENT_WINDOW = 4096  # what transformers takes for a sliding_window that config.json does not mention


@dataclass(frozen=True, slots=True)
class Architecture:
    """Differences of a decoder from Llama's. A bias is always there (True), never (False) or as config.json says."""

    qkv_bias: bool | None = None
    output_bias: bool | None = None
    mlp_bias: bool = False
    qk_norm: bool = False
    window: str = "never"  # never, always (every layer, when set) or layered (use_sliding_window, layer_types)
    head_dim: int | None = None  # when config.json has none; None: hidden_size / num_attention_heads


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(mlp_bias=True),
    "MistralForCausalLM": Architecture(qkv_bias=False, output_bias=False, window="always"),
    "Qwen2ForCausalLM": Architecture(qkv_bias=True, output_bias=False, window="layered"),
    "Qwen3ForCausalLM": Architecture(qk_norm=True, window="layered", head_dim=128),
}
_GENERATES = "ForCausalLM"
_WITHOUT_HEAD = ("ForSequenceClassification", "Model")  # the same decoder with a classifier's head, and with none


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only transformer. `windows`: for each layer, how many tokens attention reaches back; None: all.

    `purpose` says which head it has: its vocabulary's, a classifier's, or none.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_embeddings: bool
    rope: Rope
    windows: tuple[int | None, ...]
    max_positions: int
    purpose: Purpose

    @property
    def embeds(self) -> bool:
        """Its output is the hidden state behind the last norm."""
        return self.purpose.task is Task.EMBED

    @property
    def outputs(self) -> int:
        """Numbers that it gives of a token: logits, a score, or the hidden state."""
        if self.embeds:
            return self.hidden_size
        return 1 if self.purpose.classifies else self.vocab_size


def read_spec(directory: Path, task: str = "") -> DecoderSpec:
    """Read `directory`/config.json, and what says of its purpose more than `task`, if anything.

    Raises ConfigError naming file, field and what is allowed.
    """
    if not directory.is_dir():
        message = f"{directory}: not a directory; give the folder that holds config.json and *.safetensors"
        raise ConfigMissingError(message)
    config = Fields.load(directory / "config.json")
    purpose = _purpose(directory, task)
    name, architecture = _architecture(config, purpose)
    _refuse_what_changes_the_output(config)
    heads, kv_heads, head_dim = _heads(config, name, architecture)
    layers = config.integer("num_hidden_layers", maximum=4096)
    max_positions = config.integer("max_position_embeddings")
    bias = config.boolean("attention_bias", False)
    return DecoderSpec(
        architecture=name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        qkv_bias=bias if architecture.qkv_bias is None else architecture.qkv_bias,
        output_bias=bias if architecture.output_bias is None else architecture.output_bias,
        mlp_bias=architecture.mlp_bias and config.boolean("mlp_bias", False),
        qk_norm=architecture.qk_norm,
        tied_embeddings=config.boolean("tie_word_embeddings", False),
        rope=read_rope(config, max_positions),
        windows=_windows(config, architecture, layers),
        max_positions=max_positions,
        purpose=purpose,
    )


def serve_length(spec: DecoderSpec, directory: Path, max_model_len: int) -> int:
    """Tokens of prompt and output together; 0 asks for the model's own. Raises ConfigError when it is too long."""
    if max_model_len < 0 or max_model_len > spec.rope.reach_tokens:
        raise ConfigError(
            f"{directory / 'config.json'}: max_model_len {max_model_len} is out of reach; allowed: 1 to "
            f"{spec.rope.reach_tokens} tokens (max_position_embeddings, times the rope factor where it has one), or 0"
        )
    length = max_model_len or spec.max_positions
    if length > MOST_SEQUENCE_TOKENS:
        raise ConfigError(
            f"{directory / 'config.json'}: {length} tokens are too many for a sequence; allowed: {MOST_SEQUENCE_TOKENS}"
        )
    return length


def _purpose(directory: Path, task: str) -> Purpose:
    try:
        return read_purpose(directory, task)
    except PoolingError as error:
        raise ConfigError(f"{directory}/{error}") from error


def _architecture(config: Fields, purpose: Purpose) -> tuple[str, Architecture]:
    names = config.value("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    if isinstance(name, str) and purpose.pools:
        name = _with_head(name)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise config.wrong("architectures", "a list of one of " + ", ".join(ARCHITECTURES))
    return name, ARCHITECTURES[name]


def _with_head(name: str) -> str:
    for suffix in _WITHOUT_HEAD:
        if name.endswith(suffix):
            return name.removesuffix(suffix) + _GENERATES
    return name


def _refuse_what_changes_the_output(config: Fields) -> None:
    if config.value("is_causal") not in (None, True):
        raise config.wrong("is_causal", "true; encoders that attend in both directions are not served")
    if config.value("hidden_act") not in (None, "silu"):
        raise config.wrong("hidden_act", "silu")
    if "quantization_config" in config:
        raise config.wrong("quantization_config", "none; weights in float32, float16 or bfloat16")


def _heads(config: Fields, name: str, architecture: Architecture) -> tuple[int, int, int]:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads", maximum=65536)
    if "num_key_value_heads" not in config and name != "LlamaForCausalLM":
        raise config.wrong("num_key_value_heads", "an integer that divides num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    if "head_dim" not in config and architecture.head_dim is None and hidden % heads:
        raise config.wrong("num_attention_heads", f"a divisor of hidden_size ({hidden}), or head_dim beside it")
    head_dim = config.integer("head_dim", architecture.head_dim or hidden // heads, maximum=65536)
    if head_dim % 2:
        raise config.wrong("head_dim", "an even integer, as RoPE rotates pairs")
    return heads, kv_heads, head_dim


def _windows(config: Fields, architecture: Architecture, layers: int) -> tuple[int | None, ...]:
    if architecture.window == "never":
        return (None,) * layers
    if architecture.window == "always":
        unset = config.has_key("sliding_window") and "sliding_window" not in config
        return (None if unset else config.integer("sliding_window", ABSENT_WINDOW),) * layers
    if not config.boolean("use_sliding_window", False):
        return (None,) * layers
    window = config.integer("sliding_window", ABSENT_WINDOW)
    return tuple(window if kind == "sliding_attention" else None for kind in _layer_types(config, layers))


def _layer_types(config: Fields, layers: int) -> list[str]:
    first = config.integer("max_window_layers", 28, minimum=0)
    types = config.value("layer_types")
    if types is None:
        return ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    known = isinstance(types, list) and all(kind in ("full_attention", "sliding_attention") for kind in types)
    if not known or len(types) != layers:
        raise config.wrong("layer_types", f"{layers} entries, each full_attention or sliding_attention")
    return list(types)
