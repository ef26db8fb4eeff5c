"""A model divided among ranks: the parts put together are the whole, wherever chunks of the files are cut."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from aegaeon_sidecar.domain.errors import ConfigError
from aegaeon_sidecar.models.config import read_spec
from aegaeon_sidecar.models.layout import lay_out
from aegaeon_sidecar.models.sharding import Split, part_of, split_of
from aegaeon_sidecar.models.tensors import tensor_shapes
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.ring import StageRing


def image_of(directory, layout, chunk_bytes=8192):
    image = np.full(layout.image_bytes, 9, dtype=np.uint8)
    return image, fill(look(directory, layout), [image], StageRing(chunk_bytes=chunk_bytes, depth=3))


def parts_of(directory, layout, image, name, dtype=torch.float32):
    """The tensor as each rank has it."""
    (place,) = (place for place in layout.tensors if place.name == name)
    shape = tensor_shapes(part_of(read_spec(directory), layout.ranks, directory))[name]
    starts = [rank * layout.weight_bytes + place.offset for rank in range(layout.ranks)]
    return [torch.from_numpy(image[start : start + place.nbytes]).view(dtype).view(shape) for start in starts]


def together(name, parts, rows):
    """What the parts say of the whole; raises where they contradict each other."""
    split = split_of(name)
    if split is Split.ROWS:
        joined = torch.cat(parts)
        assert not joined[rows:].any(), "behind the last row there are zeros"
        return joined[:rows]
    if split is Split.COLUMNS:
        return torch.cat(parts, dim=-1)
    if split is Split.FIRST:
        assert not any(part.any() for part in parts[1:])
        return parts[0]
    assert all(torch.equal(part, parts[0]) for part in parts)
    return parts[0]


@pytest.mark.parametrize(("ranks", "vocab_size"), [(2, 384), (3, 385)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_parts_put_together_are_the_whole(make_model, ranks, vocab_size, dtype):
    heads = {
        "num_attention_heads": 2 * ranks,
        "num_key_value_heads": ranks,
        "head_dim": 16,
        "hidden_size": 48 * ranks,
        "intermediate_size": 96,
    }
    biased = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
    directory = make_model("llama", dtype=dtype, shard="60KB", vocab_size=vocab_size, **heads, **biased)
    layout = lay_out(directory, 0, "float32", 16, ranks)
    image, _ = image_of(directory, layout, chunk_bytes=4096 + 4)
    expected = {name: value for file in directory.glob("*.safetensors") for name, value in load_file(file).items()}
    for place in layout.tensors:
        whole = expected[place.name].float()
        parts = parts_of(directory, layout, image, place.name)
        assert torch.equal(together(place.name, parts, len(whole)), whole), place.name
    used = sum(place.nbytes for place in layout.tensors) * ranks
    assert (image != 0).sum() <= used


def test_each_rank_has_its_share_and_no_second_copy_of_the_whole(tiny_models):
    one, four = (lay_out(tiny_models["qwen2"], 0, "float32", 16, ranks) for ranks in (1, 4))
    assert one.image_bytes == one.weight_bytes
    assert four.weight_bytes < one.weight_bytes / 4 + 4096  # norms are whole on each
    assert four.kv_block_bytes * 4 == one.kv_block_bytes
    assert four.image_bytes == 4 * four.weight_bytes


def test_images_for_other_numbers_of_ranks_are_other_images(tiny_models):
    directory = tiny_models["llama"]
    one, two = (lay_out(directory, 0, "float32", 16, ranks) for ranks in (1, 2))
    assert look(directory, one).identity != look(directory, two).identity
    assert image_of(directory, one)[1] != image_of(directory, two)[1]


@pytest.mark.parametrize(
    ("architecture", "ranks", "field"),
    [("mistral", 2, "num_key_value_heads is 1"), ("llama", 8, "num_attention_heads is 4")],
)
def test_a_model_that_ranks_cannot_share_is_refused_with_what_to_do(tiny_models, architecture, ranks, field):
    with pytest.raises(ConfigError, match=f"config.json: {field}, which {ranks} accelerators.*accelerator.count"):
        lay_out(tiny_models[architecture], 0, "float32", 16, ranks)
