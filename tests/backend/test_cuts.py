"""A prompt's logits are the same bits wherever it is cut (by the scheduler, behind shared blocks) and beside others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cuts import LENGTHS, logits_of, some_cuts, together, tokens_of

from aegaeon_sidecar.backends import StepInput

WIDE = {"hidden_size": 256, "intermediate_size": 512}  # from here on bfloat16's sums depend on the number of rows


@pytest.fixture(scope="module", params=["float32", "bfloat16", "float16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(("architecture", "sizes"), [("qwen3", WIDE), ("mistral", {"sliding_window": 40})])
def test_a_prompt_gives_the_same_bits_wherever_it_is_cut_and_beside_others(
    rig: Any, make_model: Any, dtype: str, architecture: str, sizes: dict[str, int]
) -> None:
    engine = rig(make_model(architecture, max_position_embeddings=1024, **sizes), dtype=dtype)
    if not engine.backend.row_tile:
        pytest.skip("this machine's matrix library has no number of rows from which its sums keep their order")
    table = engine.table(max(LENGTHS))
    for length in LENGTHS:
        prompt = tokens_of(length)
        whole = logits_of(engine.backend, "model", prompt, [], table)
        assert whole.isfinite().all()
        for cuts in some_cuts(length):
            assert torch.equal(logits_of(engine.backend, "model", prompt, cuts, table), whole), (length, cuts)
    prompts = [tokens_of(length) for length in (129, 40, 5, 1)]
    for prompt, logits in zip(prompts, together(engine.backend, "model", prompts, table), strict=True):
        assert torch.equal(logits, logits_of(engine.backend, "model", prompt, [], table))


def test_the_last_token_of_a_prompt_is_no_decode(rig: Any, tiny_models: dict[str, Path]) -> None:
    """Attention computes decodes by another way, whose sums have another order."""
    part = StepInput([7], 3, rig(tiny_models["llama"]).table(4), None)
    assert part.is_decode
    assert not StepInput([7], 3, part.blocks, None, prompt=True).is_decode


@pytest.mark.parametrize("heads", [1, 4])
def test_with_threads_a_decode_of_one_key_head_gives_the_same_bits_alone_and_beside_others(
    rig: Any, make_model: Any, dtype: str, heads: int
) -> None:
    sizes = {"num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 1024}
    directory = make_model("qwen3", **sizes)
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        engine = rig(directory, kv_blocks=140, dtype=dtype)
        if not engine.backend.row_tile:
            pytest.skip("this machine's matrix library has no number of rows from which its sums keep their order")
        tables = [engine.table(701) for _ in range(3)]
        for number, table in enumerate(tables):
            engine.logits([*tokens_of(700)[number:], *tokens_of(number)], 0, table)
        decodes = [engine.input([7], 700, table) for table in tables]
        together = engine.backend.logits("model", decodes)
        alone = [engine.backend.logits("model", [decode])[0] for decode in decodes]
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(together, torch.stack(alone))
