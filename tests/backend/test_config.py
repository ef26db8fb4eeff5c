"""config.json: both dialects are understood, and what is not supported is refused by file, field and allowed values."""

import re

import pytest

from aegaeon_sidecar.domain.errors import ConfigError
from aegaeon_sidecar.models.config import read_spec, serve_length
from aegaeon_sidecar.models.rope import Linear, Plain, Yarn


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_the_older_field_names_mean_the_same(tiny_models, make_model, with_config, architecture):
    scaled = make_model(architecture, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5})
    older = with_config(
        scaled,
        rope_parameters=None,
        dtype=None,
        rope_theta=500000,
        rope_scaling={"type": "linear", "factor": 2.0},
        torch_dtype="float32",
    )
    assert read_spec(older) == read_spec(scaled)
    assert read_spec(scaled).rope.scaling == Linear(2.0)
    assert read_spec(tiny_models[architecture]).rope.scaling == Plain()


def test_every_field_that_distinguishes_the_architectures_is_read(tiny_models):
    specs = {name: read_spec(directory) for name, directory in tiny_models.items()}
    assert {name: (spec.qkv_bias, spec.qk_norm) for name, spec in specs.items()} == {
        "llama": (False, False),
        "mistral": (False, False),
        "qwen2": (True, False),
        "qwen3": (False, True),
    }
    assert {name: spec.head_dim for name, spec in specs.items()} == {
        "llama": 16,
        "mistral": 32,
        "qwen2": 16,
        "qwen3": 16,
    }


def test_mistral_without_a_mention_of_the_window_has_the_one_transformers_assumes(tiny_models, with_config, make_model):
    assert read_spec(tiny_models["mistral"]).windows == (None, None)
    assert read_spec(with_config(tiny_models["mistral"], sliding_window=None)).windows == (4096, 4096)
    assert read_spec(make_model("mistral", sliding_window=8)).windows == (8, 8)


def test_layer_types_determine_which_layers_have_the_window(tiny_models, with_config):
    types = ["sliding_attention", "full_attention"]
    changed = with_config(tiny_models["qwen3"], use_sliding_window=True, sliding_window=9, layer_types=types)
    assert read_spec(changed).windows == (9, None)


def test_yarn_reaches_further_than_the_positions_it_was_trained_on(tiny_models, with_config):
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 1e4}
    directory = with_config(tiny_models["qwen2"], rope_parameters=rope)
    spec = read_spec(directory)
    assert isinstance(spec.rope.scaling, Yarn)
    assert serve_length(spec, directory, 1024) == 1024
    assert serve_length(spec, directory, 0) == 256
    with pytest.raises(ConfigError, match=r"max_model_len 1025 is out of reach; allowed: 1 to 1024"):
        serve_length(spec, directory, 1025)


def test_dynamic_scaling_is_served_where_it_changes_nothing(tiny_models, with_config):
    directory = with_config(tiny_models["llama"], rope_parameters={"rope_type": "dynamic", "factor": 2.0})
    spec = read_spec(directory)
    assert serve_length(spec, directory, 256) == 256
    with pytest.raises(ConfigError, match="out of reach"):
        serve_length(spec, directory, 257)


REFUSED = [
    ({"architectures": ["GPT2LMHeadModel"]}, "architectures", "LlamaForCausalLM, MistralForCausalLM"),
    ({"architectures": None}, "architectures is missing", "Qwen3ForCausalLM"),
    ({"architectures": ["LlamaForCausalLM", "Qwen2ForCausalLM"]}, "architectures", "a list of one"),
    ({"hidden_act": "gelu"}, "hidden_act", "silu"),
    ({"hidden_size": "64"}, 'hidden_size is "64"', "an integer from 1"),
    ({"hidden_size": True}, "hidden_size", "an integer"),
    ({"num_hidden_layers": 0}, "num_hidden_layers", "an integer from 1"),
    ({"num_key_value_heads": 3}, "num_key_value_heads", "a divisor of num_attention_heads"),
    ({"vocab_size": None}, "vocab_size is missing", "an integer"),
    ({"head_dim": 15}, "head_dim", "an even integer"),
    ({"rms_norm_eps": -1.0}, "rms_norm_eps", "a finite number above 0"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings", "true or false"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config", "none"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type", "default, dynamic, linear"),
    ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor is missing", "a finite number"),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor", "1.0"),
    ({"rope_parameters": []}, "rope_parameters", "an object"),
    ({"is_causal": False}, "is_causal", "true"),
    ({"rope_parameters": None, "rope_scaling": {"type": "su"}}, "rope_scaling.type", "yarn"),
]


@pytest.mark.parametrize(("fields", "named", "allowed"), REFUSED)
def test_unsupported_options_are_refused_by_name(tiny_models, with_config, fields, named, allowed):
    directory = with_config(tiny_models["llama"], **fields)
    with pytest.raises(ConfigError, match=f"config.json: .*{re.escape(named)}.*allowed: .*{re.escape(allowed)}"):
        read_spec(directory)


def test_layer_types_of_the_wrong_length_are_refused(tiny_models, with_config):
    changed = with_config(tiny_models["qwen2"], use_sliding_window=True, layer_types=["full_attention"])
    with pytest.raises(ConfigError, match=r"layer_types .* 2 entries"):
        read_spec(changed)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "null"])
def test_a_file_that_is_not_an_object_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json: (not JSON|holds)"):
        read_spec(tmp_path)


def test_a_missing_directory_or_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a directory"):
        read_spec(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"config\.json: missing"):
        read_spec(tmp_path)
