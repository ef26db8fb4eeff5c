"""A step: mixed batches, scattered blocks, parameters as views, and the errors of its contract."""

import numpy as np
import pytest
import torch

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.domain.errors import BackendError
from aegaeon_sidecar.models.layout import KvShape
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.sampling import Sampled, SamplerState, Scored
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.ring import StageRing


def prefilled(tiny, prompt, lengths):
    """Prefill prefixes of the prompt; their block tables with room for one more token."""
    tables = [tiny.table(length + 1) for length in lengths]
    parts = [tiny.input(prompt[:length], 0, table) for length, table in zip(lengths, tables, strict=True)]
    return tiny.backend.logits("model", parts), tables


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_several_prefills_in_one_step_match_transformers(rig, reference, tiny_models, prompt, architecture):
    lengths = [1, 16, 17, 40, 3]
    tiny = rig(tiny_models[architecture])
    logits, _ = prefilled(tiny, prompt, lengths)
    expected = reference(tiny_models[architecture], prompt)[[length - 1 for length in lengths]]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("fields", [{}, {"sliding_window": 8}])
def test_a_batch_of_decodes_of_different_lengths_matches_transformers(rig, reference, make_model, prompt, fields):
    directory, lengths = make_model("mistral", **fields), [1, 15, 16, 31, 50]
    tiny = rig(directory)
    _, tables = prefilled(tiny, prompt, lengths)
    parts = [tiny.input([prompt[n]], n, table) for n, table in zip(lengths, tables, strict=True)]
    torch.testing.assert_close(
        tiny.backend.logits("model", parts), reference(directory, prompt)[lengths], rtol=1e-4, atol=5e-5
    )


def test_decodes_and_chunks_may_share_a_step_in_any_order(rig, reference, tiny_models, prompt):
    tiny = rig(tiny_models["qwen3"])
    _, (first, second) = prefilled(tiny, prompt, [20, 33])
    long, fresh = tiny.table(50), tiny.table(10)
    tiny.logits(prompt[:30], 0, long)
    parts = [
        tiny.input(prompt[:10], 0, fresh),
        tiny.input([prompt[20]], 20, first),
        tiny.input(prompt[30:50], 30, long),
        tiny.input([prompt[33]], 33, second),
    ]
    expected = reference(tiny_models["qwen3"], prompt)[[9, 20, 49, 33]]
    torch.testing.assert_close(tiny.backend.logits("model", parts), expected, rtol=1e-4, atol=5e-5)


def test_the_same_batch_in_other_blocks_gives_the_same_bits(rig, tiny_models, prompt):
    tiny = rig(tiny_models["llama"])
    runs = []
    for _ in range(2):
        _, tables = prefilled(tiny, prompt, [9, 24])
        parts = [tiny.input([prompt[n]], n, table) for n, table in zip([9, 24], tables, strict=True)]
        runs.append(tiny.backend.logits("model", parts))
    assert torch.equal(*runs)


@pytest.mark.parametrize(
    ("architecture", "ranks"), [("llama", 1), ("mistral", 1), ("qwen2", 1), ("qwen3", 1), ("qwen2", 4)]
)
def test_no_logit_depends_on_the_rest_of_the_batch(rig, make_model, prompt, architecture, ranks):
    tiny = rig(make_model(architecture, hidden_size=96, intermediate_size=200), kv_blocks=128, ranks=ranks)
    if not tiny.backend.row_tile:
        pytest.skip("this machine's matrix library has no number of rows from which its sums keep their order")
    lengths = [1, 9, 9, 17, 40, 55]
    together, tables = prefilled(tiny, prompt, lengths)
    one_by_one = [prefilled(tiny, prompt, [length]) for length in lengths]
    assert torch.equal(together, torch.cat([logits for logits, _ in one_by_one]))
    parts = [tiny.input([prompt[n]], n, table) for n, table in zip(lengths, tables, strict=True)]
    alone = torch.cat([tiny.backend.logits("model", [part]) for part in parts])
    for size in (2, 3, 5, 6):
        assert torch.equal(tiny.backend.logits("model", parts[:size]), alone[:size])
    assert torch.equal(tiny.backend.logits("model", parts[::-1]), alone.flip(0))


def test_rows_may_depend_on_the_batch_when_that_is_asked_for(rig, reference, tiny_models, prompt):
    tiny = rig(tiny_models["llama"], batch_invariant=False)
    assert tiny.backend.row_tile == 0
    _, tables = prefilled(tiny, prompt, [9, 24])
    parts = [tiny.input([prompt[n]], n, table) for n, table in zip([9, 24], tables, strict=True)]
    expected = reference(tiny_models["llama"], prompt)[[9, 24]]
    torch.testing.assert_close(tiny.backend.logits("model", parts), expected, rtol=1e-4, atol=5e-5)


def test_a_block_that_was_copied_elsewhere_goes_on_with_the_same_bits(rig, tiny_models, prompt):
    tiny = rig(tiny_models["qwen2"])
    table, other = tiny.table(21), tiny.table(21)
    tiny.logits(prompt[:20], 0, table)
    blocks = tiny.kv.reshape(-1, tiny.layout.kv_block_bytes)
    blocks[other] = blocks[table]
    there = tiny.logits(prompt[20:21], 20, other)
    assert torch.equal(tiny.logits(prompt[20:21], 20, table), there)


def test_parameters_are_views_that_survive_another_models_bytes(rig, make_model, prompt):
    tiny, other = rig(make_model("llama")), make_model("llama", seed=1)
    before = tiny.logits(prompt, 0, tiny.table(60))
    own = tiny.weights.copy()
    layout = tiny.backend.describe(other, 0)
    fill(look(other, layout), [tiny.weights], StageRing())
    assert not torch.equal(tiny.logits(prompt, 0, tiny.table(60)), before)
    tiny.weights[:] = own
    assert torch.equal(tiny.logits(prompt, 0, tiny.table(60)), before)


def test_registering_and_binding_touch_no_memory(tiny_models):
    backend = TorchBackend()
    layout = backend.describe(tiny_models["qwen3"], 0)
    weights = np.full(layout.weight_bytes, 7, dtype=np.uint8)
    kv = np.full(4 * layout.kv_block_bytes, 7, dtype=np.uint8)
    backend.register("model", tiny_models["qwen3"], layout, weights)
    backend.bind_kv(layout.kv_shape, kv)
    assert (weights == 7).all()
    assert (kv == 7).all()


def test_tokens_are_sampled_only_where_asked(rig, tiny_models, prompt):
    tiny = rig(tiny_models["llama"])
    parts = [
        tiny.input(prompt[:10], 0, tiny.table(10)),
        tiny.input(prompt[:20], 0, tiny.table(20), SamplerState()),
    ]
    first, second = tiny.backend.step("model", parts)
    expected = tiny.logits(prompt[:20], 0, tiny.table(20))
    assert first is None
    assert second == Sampled(int(expected.argmax()))


def test_a_step_without_inputs_is_empty(rig, tiny_models):
    assert rig(tiny_models["llama"]).backend.step("model", []) == []


def test_layouts_are_aligned_ordered_and_sized_by_the_dtype(tiny_models):
    half, full = (TorchBackend(dtype=dtype).describe(tiny_models["qwen2"], 100) for dtype in ("bfloat16", "float32"))
    for layout, item in ((half, 2), (full, 4)):
        ends = [place.offset + place.nbytes for place in layout.tensors]
        assert all(place.offset % 256 == 0 for place in layout.tensors)
        assert all(end <= place.offset for end, place in zip(ends, layout.tensors[1:], strict=False))
        assert ends[-1] <= layout.weight_bytes
        assert layout.kv_block_bytes == 2 * 2 * 16 * 4 * 16 * item
        assert layout.max_model_len == 100
    assert look(tiny_models["qwen2"], half).identity != look(tiny_models["qwen2"], full).identity


def test_a_kv_shapes_key_says_everything_and_parses_back():
    shape = KvShape(layers=2, block_tokens=16, kv_heads=4, head_dim=64, dtype="bfloat16")
    assert KvShape.parse(shape.key) == shape
    with pytest.raises(BackendError, match="not of the form"):
        KvShape.parse("l2-t16")


@pytest.mark.parametrize(
    ("tokens", "position", "blocks", "message"),
    [
        ([1], 16, [0], "too short"),
        ([1], 0, [99], "outside 0 to"),
        ([1], 0, [-1], "outside 0 to"),
        ([384], 0, [0], "tokens from 0 to 383"),
        ([-1], 0, [0], "tokens from 0 to 383"),
        ([], 0, [0], "at least one"),
    ],
)
def test_a_bad_input_is_refused(rig, tiny_models, tokens, position, blocks, message):
    part = StepInput(tokens, position, np.array(blocks, dtype=np.int32), None)
    with pytest.raises(BackendError, match=message):
        rig(tiny_models["llama"]).backend.step("model", [part])


def test_models_that_were_not_registered_or_bound_are_named(rig, tiny_models):
    tiny = rig(tiny_models["llama"])
    part = tiny.input([1], 0, tiny.table(1))
    tiny.backend.forget("model")
    with pytest.raises(BackendError, match="'model' is not registered"):
        tiny.backend.step("model", [part])
    backend = TorchBackend()
    backend.register("model", tiny.directory, tiny.layout, tiny.weights)
    with pytest.raises(BackendError, match="has no blocks"):
        backend.step("model", [part])


def test_a_stale_layout_or_a_small_range_is_refused(tiny_models):
    backend = TorchBackend()
    layout = backend.describe(tiny_models["llama"], 0)
    with pytest.raises(BackendError, match="changed since it was described"):
        backend.register("m", tiny_models["qwen2"], layout, np.empty(layout.weight_bytes, np.uint8))
    with pytest.raises(BackendError, match="are needed"):
        backend.register("m", tiny_models["llama"], layout, np.empty(1, np.uint8))


@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"device": "tpu"}])
def test_a_dtype_or_device_that_is_not_supported_is_refused(options):
    with pytest.raises(BackendError, match="allowed"):
        TorchBackend(**options)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_a_prompt_is_scored_in_chunks_as_transformers_scores_it(rig, reference, tiny_models, prompt, architecture):
    tiny = rig(tiny_models[architecture])
    table, said, last = tiny.table(60), [], None
    for start, end in ((0, 1), (1, 20), (20, 36), (36, 60)):
        sampler = SamplerState() if end == 60 else None
        scored = prompt[start + 1 : end + 1]
        part = StepInput(prompt[start:end], start, table, sampler, scored=scored, likeliest=3)
        [result] = tiny.backend.step("model", [part])
        assert isinstance(result, Scored)
        said += result.prompt
        last = result.chosen
    logits = reference(tiny_models[architecture], prompt)
    expected = logits[:-1].log_softmax(-1)
    torch.testing.assert_close(
        torch.tensor([one.logprob for one in said]),
        expected.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0],
        rtol=1e-4,
        atol=1e-4,
    )
    assert [[token for token, _ in one.top] for one in said] == expected.topk(3).indices.tolist()
    assert last == Sampled(int(logits[-1].argmax()))


def test_a_scored_prompt_is_a_step_of_its_own(rig, tiny_models, prompt):
    tiny = rig(tiny_models["llama"])
    scored = StepInput(prompt[:4], 0, tiny.table(4), None, scored=prompt[1:5])
    with pytest.raises(BackendError, match="a step of its own"):
        tiny.backend.step("model", [scored, tiny.input(prompt[:4], 0, tiny.table(4))])
