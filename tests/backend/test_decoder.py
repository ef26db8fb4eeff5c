"""The decoder says what transformers says: every architecture, every rope, every way of cutting a prompt."""

from functools import partial

import pytest
import torch

ROPES = {
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 500.0,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0},
    "yarn with every field": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 500.0,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
    "another base": {"rope_type": "default", "rope_theta": 1e6},
}
VARIANTS = {
    "llama untied": ("llama", {"tie_word_embeddings": False}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True, "intermediate_size": 80}),
    "llama without gaps impossible": ("llama", {"hidden_size": 40, "intermediate_size": 50, "head_dim": 6}),
    "mistral with a window": ("mistral", {"sliding_window": 8}),
    "qwen2 with a window in some layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3 with biases": ("qwen3", {"attention_bias": True, "tie_word_embeddings": False}),
}

SHARED = {
    "llama on two": (2, "llama", {}),
    "llama with biases on two": (2, "llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2 on four": (4, "qwen2", {}),
    "qwen2 with a vocabulary that three do not share evenly": (
        3,
        "qwen2",
        {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16, "hidden_size": 96, "vocab_size": 385},
    ),
    "qwen3 on two, tied, with a vocabulary of an odd size": (2, "qwen3", {"vocab_size": 387}),
    "mistral with a window on two": (2, "mistral", {"num_key_value_heads": 2, "sliding_window": 8}),
}


def check(rig, reference, directory, prompt):
    """One pass, three chunks and single tokens, each against transformers' own logits."""
    expected = reference(directory, prompt)
    tiny = rig(directory)
    whole = tiny.logits(prompt, 0, tiny.table(len(prompt)))
    table = tiny.table(len(prompt))
    chunked = [tiny.logits(prompt[a:b], a, table) for a, b in ((0, 5), (5, 32), (32, 41))]
    decoded = [tiny.logits(prompt[i : i + 1], i, table) for i in range(41, len(prompt))]
    close = {"rtol": 1e-4, "atol": 5e-5}
    torch.testing.assert_close(whole, expected[-1], **close)
    torch.testing.assert_close(torch.stack(chunked), expected[[4, 31, 40]], **close)
    torch.testing.assert_close(torch.stack(decoded), expected[41:], **close)


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_prefill_chunks_and_decode_match_transformers(rig, reference, tiny_models, prompt, architecture):
    check(rig, reference, tiny_models[architecture], prompt)


@pytest.mark.parametrize("scaling", ROPES)
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_every_rope_scaling_matches_transformers(rig, reference, make_model, prompt, architecture, scaling):
    check(rig, reference, make_model(architecture, rope_parameters=ROPES[scaling]), prompt)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_switch_of_an_architecture_matches_transformers(rig, reference, make_model, prompt, variant):
    architecture, fields = VARIANTS[variant]
    check(rig, reference, make_model(architecture, **fields), prompt)


@pytest.mark.parametrize("shared", SHARED)
def test_ranks_that_share_a_model_match_transformers(rig, reference, make_model, prompt, shared):
    ranks, architecture, fields = SHARED[shared]
    check(partial(rig, ranks=ranks), reference, make_model(architecture, **fields), prompt)


def test_a_rope_scaling_changes_the_output(reference, make_model, prompt):
    plain = reference(make_model("llama"), prompt)
    for scaling in ("linear", "llama3", "yarn"):
        scaled = reference(make_model("llama", rope_parameters=ROPES[scaling]), prompt)
        assert (plain - scaled).abs().max() > 0.1, scaling


def test_sharded_bf16_files_in_a_float32_engine_match_transformers(rig, reference, make_model, prompt):
    check(rig, reference, make_model("qwen2", dtype="bfloat16", shard="40KB"), prompt)


def test_a_bf16_engine_stays_near_float32(rig, reference, tiny_models, prompt):
    tiny = rig(tiny_models["qwen3"], dtype="bfloat16")
    expected = reference(tiny_models["qwen3"], prompt)[-1]
    logits = tiny.logits(prompt, 0, tiny.table(len(prompt)))
    assert torch.nn.functional.cosine_similarity(logits, expected, dim=0) > 0.999
