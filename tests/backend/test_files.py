"""Weight files: whatever does not add up is refused with the file, the tensor and the remedy, before a byte is used."""

import json
import math
import os
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.domain.errors import (
    CacheFullError,
    FilesChangedError,
    FilesMissingError,
    FillCancelledError,
    WeightsError,
)
from aegaeon_sidecar.models.config import read_spec
from aegaeon_sidecar.models.files import find_tensors
from aegaeon_sidecar.models.header import read_header
from aegaeon_sidecar.models.layout import lay_out
from aegaeon_sidecar.models.sharding import Deal
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.weights.fill import chunks, fill
from aegaeon_sidecar.weights.ring import Job, StageRing


def write(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(begin, end, dtype="F32", shape=None):
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def find(directory):
    return find_tensors(directory, read_spec(directory))


def outcome(path):
    try:
        return read_header(path)
    except WeightsError as error:
        return error


def shards(directory):
    return sorted(directory.glob("*.safetensors"))


def rewrite(directory, change):
    tensors = {**load_file(directory / "model.safetensors"), **change}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, directory / "model.safetensors")
    return directory


@pytest.fixture
def copy(with_config, tiny_models):
    return with_config(tiny_models["qwen2"])


@pytest.fixture
def sharded(with_config, make_model):
    return with_config(make_model("qwen2", shard="40KB"))


def test_headers_are_parsed_as_safetensors_parses_them(tiny_models):
    path = tiny_models["qwen3"] / "model.safetensors"
    tensors = {tensor.name: tensor for tensor in read_header(path)}
    raw = path.read_bytes()
    for name, expected in load_file(path).items():
        ours = tensors[name]
        assert ours.shape == tuple(expected.shape)
        assert raw[ours.offset : ours.offset + ours.nbytes] == expected.numpy().tobytes()


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry(0, 8), "b": entry(4, 12)}, 12, "b: overlaps"),
        ({"a": entry(0, 8), "b": entry(0, 8)}, 8, "overlaps"),
        ({"a": entry(0, 8), "b": entry(12, 16)}, 16, "b: leaves a hole"),
        ({"a": entry(0, 8)}, 4, "truncated: .* fetch it again"),
        ({"a": entry(0, 8)}, 12, "4 bytes after the last tensor"),
        ({"a": entry(0, 8, shape=[3])}, 8, r"a: offsets span 8 bytes, F32 \[3\] needs 12"),
        ({"a": entry(0, 8, dtype="I4")}, 8, "a: dtype is 'I4'; allowed: F32, F16, BF16"),
        ({"a": entry(0, 8, shape=[-2])}, 8, "a: shape must be"),
        ({"a": entry(0, 8, shape=[1] * 9)}, 8, "a: shape must be"),
        ({"a": entry(0, 8, shape=[True, 2])}, 8, "a: shape must be"),
        ({"a": {**entry(0, 8), "data_offsets": [0]}}, 8, "a: data_offsets must be"),
        ({"a": {**entry(0, 8), "data_offsets": [0.0, 8]}}, 8, "a: data_offsets must be"),
        ({"a": [1]}, 8, "a: must have exactly"),
        ({"a": {"dtype": "F32"}}, 8, "a: must have exactly"),
        (b'{"a": 1, "a": 1}', 0, "a name appears twice"),
        (b"[]", 0, "not a JSON object"),
        (b"\xff", 0, "header is not valid"),
        (b"[" * 100_000, 0, "header is not valid"),
    ],
)
def test_an_inconsistent_header_is_refused(tmp_path, header, data, message):
    with pytest.raises(WeightsError, match=message):
        read_header(write(tmp_path / "model.safetensors", header, b"\0" * data))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "0 bytes, too short"),
        (b"1234567", "too short"),
        (struct.pack("<Q", 2**63), "claims a header of"),
        (struct.pack("<Q", 50_000_000) + b"{}", "truncated inside its header"),
    ],
)
def test_a_false_length_is_refused_without_reading_it(tmp_path, raw, message):
    (tmp_path / "x.safetensors").write_bytes(raw)
    with pytest.raises(WeightsError, match=message):
        read_header(tmp_path / "x.safetensors")


ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I4", 3]),
        "shape": st.lists(st.integers(-1, 5) | st.just(2**62), max_size=3) | st.none(),
        "data_offsets": st.lists(st.integers(-1, 40), min_size=1, max_size=3),
    }
)


@given(header=st.dictionaries(st.sampled_from("abc"), ENTRIES), data=st.integers(0, 60))
def test_any_header_is_refused_or_names_bytes_that_are_there(tmp_path_factory, header, data):
    path = write(tmp_path_factory.mktemp("fuzz") / "x.safetensors", header, b"\0" * data)
    tensors = outcome(path)
    if isinstance(tensors, WeightsError):
        assert str(path) in str(tensors)
    else:
        assert sum(tensor.nbytes for tensor in tensors) == data
        assert all(tensor.offset + tensor.nbytes <= path.stat().st_size for tensor in tensors)
        assert all(tensor.nbytes == math.prod(tensor.shape) * int(tensor.dtype[-2:]) // 8 for tensor in tensors)


@given(cut=st.integers(0, 100_000), flip=st.integers(0, 255), place=st.integers(0, 4000))
def test_a_damaged_file_is_refused_or_reads_the_same_places(tmp_path_factory, tiny_models, cut, flip, place):
    raw = bytearray((tiny_models["qwen3"] / "model.safetensors").read_bytes())
    raw[place] ^= flip
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    path.write_bytes(raw[: len(raw) - cut])
    tensors = outcome(path)
    if isinstance(tensors, WeightsError):
        assert str(path) in str(tensors)
    else:
        assert cut == 0
        assert tensors[-1].offset + tensors[-1].nbytes == len(raw)


def test_pickled_weights_are_refused_by_name(copy):
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"only pickled weights \(pytorch_model\.bin\).*convert them to safetensors"):
        find(copy)


def test_a_directory_without_weights_is_refused(copy):
    (copy / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"neither model\.safetensors nor"):
        find(copy)


def test_a_missing_shard_is_named(sharded):
    shard = shards(sharded)[1]
    shard.unlink()
    with pytest.raises(WeightsError, match=f"{shard.name}: missing"):
        find(sharded)


def test_a_truncated_shard_is_named(sharded):
    shard = shards(sharded)[2]
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=f"{shard.name}: truncated"):
        find(sharded)


def test_a_shard_of_another_version_is_named(sharded):
    first, second = shards(sharded)[:2]
    second.write_bytes(first.read_bytes())
    with pytest.raises(WeightsError, match=f"{second.name}: lacks .*different versions"):
        find(sharded)


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", "model.bin", 3, "a\0.safetensors", ""])
def test_an_index_may_only_name_safetensors_beside_it(sharded, file):
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": file}}))
    with pytest.raises(WeightsError, match=r"is not the name of a \.safetensors file beside the index"):
        find(sharded)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "[" * 100_000])
def test_an_invalid_index_is_refused(sharded, text):
    (sharded / "model.safetensors.index.json").write_text(text)
    with pytest.raises(WeightsError, match=r"index\.json: .*weight_map"):
        find(sharded)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lm_head.weight": None}, "1 tensors are missing, the first is lm_head.weight"),
        ({"model.norm.weight": torch.ones(63)}, r"model\.norm\.weight: shape \[63\], must be \[64\]"),
        ({"model.norm.bias": torch.ones(64)}, "model.norm.bias: Qwen2ForCausalLM has no such tensor"),
    ],
)
def test_weights_that_do_not_fit_the_config_are_refused(copy, change, message):
    with pytest.raises(WeightsError, match=f"{message}.*do not belong together"):
        find(rewrite(copy, change))


def test_buffers_of_old_checkpoints_are_ignored(copy):
    found = find(rewrite(copy, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert not any(name.endswith("inv_freq") for name in found)


def read_in(directory, layout, ring, **options):
    image = np.full(layout.weight_bytes + 5, 9, dtype=np.uint8)
    return fill(look(directory, layout), [image], ring, **options), image


@pytest.fixture
def ring():
    return StageRing(chunk_bytes=8192, depth=3)


def test_the_content_hash_follows_the_bytes_and_not_the_name(copy, tiny_models, ring):
    def content(directory, dtype="float32"):
        return read_in(directory, lay_out(directory, 0, dtype, 16), ring)[0]

    before = content(copy)
    assert before == content(tiny_models["qwen2"])
    assert before != content(copy, "bfloat16")
    raw = bytearray((copy / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (copy / "model.safetensors").write_bytes(raw)
    assert content(copy) != before


def test_the_identity_of_files_follows_their_stat_without_reading_them(copy, tiny_models):
    layout = lay_out(copy, 0, "float32", 16)
    before = look(copy, layout).identity
    assert before == look(copy, lay_out(copy, 0, "float32", 16)).identity
    original = tiny_models["qwen2"]
    assert before != look(original, lay_out(original, 0, "float32", 16)).identity
    os.utime(copy / "config.json")
    assert look(copy, layout).identity == before
    os.utime(copy / "model.safetensors")
    assert look(copy, layout).identity != before


@pytest.mark.parametrize("file_dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("engine_dtype", ["float32", "bfloat16"])
def test_an_image_holds_every_tensor_converted_at_its_place(make_model, ring, file_dtype, engine_dtype):
    directory = make_model("qwen2", dtype=file_dtype, shard="40KB")
    layout = TorchBackend(dtype=engine_dtype).describe(directory, 0)
    steps = []
    content, image = read_in(directory, layout, ring, progress=lambda done, total: steps.append((done, total)))
    assert len(content) == 32
    expected = {}
    for shard in directory.glob("*.safetensors"):
        expected.update(load_file(shard))
    for place in layout.tensors:
        ours = torch.from_numpy(image[place.offset : place.offset + place.nbytes]).view(getattr(torch, engine_dtype))
        assert torch.equal(ours, expected[place.name].flatten().to(ours.dtype)), place.name
    used = sum(place.nbytes for place in layout.tensors)
    assert (image[: layout.weight_bytes] != 0).sum() <= used
    assert (image[layout.weight_bytes :] == 9).all()
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1] == sum(tensor.nbytes for tensor in find(directory).values())


def test_tensors_at_odd_places_are_cut_at_whole_items(tmp_path, ring):
    """A header of odd length and chunks of odd bounds: an item may lie across two chunks."""
    text = b' {"a":{"dtype":"BF16","shape":[8191],"data_offsets":[0,16382]}}'
    values = torch.randn(8191).to(torch.bfloat16)
    file = tmp_path / "x.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + values.view(torch.uint8).numpy().tobytes())
    (tensor,) = read_header(file)
    assert tensor.offset % 2
    reads = chunks(file, [tensor], {tensor: Deal(256)}, "float32", chunk_bytes=4093)
    target = np.zeros(256 + 4 * 8191, np.uint8)
    ring.run(Job(reads, [target], "F32", True, lambda done, total: None, lambda: False))
    assert torch.equal(torch.from_numpy(target[256:]).view(torch.float32), values.float())


def test_filling_stops_when_it_is_cancelled(copy):
    layout = lay_out(copy, 0, "float32", 16)
    with pytest.raises(FillCancelledError):
        read_in(copy, layout, StageRing(chunk_bytes=4096, depth=1), cancelled=lambda: True)


def test_files_that_changed_after_they_were_described_are_refused(copy, tiny_models, ring):
    layout = lay_out(tiny_models["llama"], 0, "float32", 16)
    with pytest.raises(WeightsError, match="changed since the model was laid out"):
        read_in(copy, layout, ring)


def test_a_file_gets_the_same_image(copy, ring, tmp_path):
    layout = lay_out(copy, 0, "float16", 16)
    content, image = read_in(copy, layout, ring)
    with (tmp_path / "image").open("w+b") as file:
        file.truncate(layout.image_bytes)
        assert fill(look(copy, layout), [], ring, into_file=file.fileno()) == content
        assert file.read() == image[: layout.image_bytes].tobytes()


def test_a_full_file_system_is_not_reported_as_a_fault_of_the_files(copy, ring):
    with open("/dev/full", "wb") as full, pytest.raises(CacheFullError, match="filled up meanwhile"):
        fill(look(copy, lay_out(copy, 0, "float32", 16)), [], ring, into_file=full.fileno())


def test_files_that_change_while_they_are_read_are_refused(copy, ring):
    layout = lay_out(copy, 0, "float32", 16)
    with pytest.raises(FilesChangedError, match="changed while it was read"):
        read_in(copy, layout, ring, progress=lambda done, total: os.utime(layout.files[0]))


def zero(path):
    """In place; size, inode and time of modification stay."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        file.write(bytes(100))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap(path):
    """For a file of equal bytes."""
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (zero, FilesChangedError, "was written to"),
        (os.utime, FilesChangedError, "was written to, or its attributes"),
        (swap, FilesChangedError, "is another file"),
        (lambda path: os.truncate(path, 1000), FilesChangedError, "has 1000 bytes, had"),
        (os.unlink, FilesMissingError, "missing"),
    ],
)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_files_are_read_as_they_were_described_or_not_at_all(copy, ring, name, change, error, words):
    files = look(copy, lay_out(copy, 0, "float32", 16))
    image = np.zeros(files.layout.weight_bytes, dtype=np.uint8)
    assert fill(files, [image], ring) == fill(files, [], ring)
    if name == "config.json" and words.startswith("has"):
        (copy / name).write_bytes(bytes(5000))
    change(copy / name)
    with pytest.raises(error, match=f"{name}: {words}"):
        fill(files, [image], ring)


def test_a_file_truncated_while_it_is_read_is_reported_as_changed(copy):
    files = look(copy, lay_out(copy, 0, "float32", 16))
    image = np.zeros(files.layout.weight_bytes, dtype=np.uint8)
    ring = StageRing(chunk_bytes=4096, depth=1, readers=1)
    with pytest.raises(FilesChangedError, match=r"has 1000 bytes, had .* changed while it was read"):
        fill(files, [image], ring, progress=lambda done, total: os.truncate(files.layout.files[0], 1000))


def test_the_file_that_was_compared_is_read_even_if_its_path_was_replaced_meanwhile(copy):
    """A folder that is swapped for another and back changes no file."""
    elsewhere = copy.with_name("elsewhere")

    class Swapping(StageRing):
        def run(self, job):
            copy.rename(elsewhere)
            copy.mkdir()
            super().run(job)
            copy.rmdir()
            elsewhere.rename(copy)

    files = look(copy, lay_out(copy, 0, "float32", 16))
    assert fill(files, [], Swapping()) == fill(files, [], StageRing())


def test_an_image_that_is_too_small_is_refused(copy, ring):
    layout = lay_out(copy, 0, "float32", 16)
    with pytest.raises(WeightsError, match="the image needs"):
        fill(look(copy, layout), [np.empty(layout.weight_bytes - 1, np.uint8)], ring)
