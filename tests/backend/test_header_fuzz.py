"""Headers that lie, by the thousand: refused with the file's name, or naming bytes that are there, once each.

The short form runs with the others; `pytest -m slow tests/backend/test_header_fuzz.py` tries 100,000.
"""

from __future__ import annotations

import json
import math
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from aegaeon_sidecar.domain.errors import WeightsError
from aegaeon_sidecar.models.header import ITEM_BYTES, MAX_RANK, FileTensor, read_header

QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
JSON: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NUMBERS = st.integers(-2, 40) | st.sampled_from([2**31, 2**48, 2**63, 2**64, -(2**63)]) | st.booleans() | st.floats()


@st.composite
def sound(draw: DrawFn) -> tuple[dict[str, Any], int]:
    """A header as it should be, and the bytes of its tensors."""
    header: dict[str, Any] = {}
    end = 0
    for name in draw(st.lists(st.text(max_size=6), max_size=5, unique=True)):
        dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        begin, end = end, end + math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return header, end


@st.composite
def lying(draw: DrawFn) -> tuple[Any, int]:
    """A sound header with one field of one tensor replaced, swapped or dropped; or anything else that JSON can say."""
    header, end = draw(sound())
    if not header or draw(st.integers(0, 9)) == 0:
        return draw(JSON), end
    entry = header[draw(st.sampled_from(sorted(header)))]
    match draw(st.integers(0, 5)):
        case 0:
            entry["data_offsets"] = draw(st.lists(NUMBERS, max_size=3))
        case 1:
            entry["shape"] = draw(st.lists(NUMBERS, max_size=MAX_RANK + 2))
        case 2:
            entry["dtype"] = draw(st.sampled_from(["F64", "I8", "BOOL", "f32", ""]) | JSON)
        case 3:
            entry.update(header[draw(st.sampled_from(sorted(header)))])
        case 4:
            entry.pop(draw(st.sampled_from(sorted(entry))))
        case _:
            end += draw(st.integers(-8, 8))
    return header, max(end, 0)


@st.composite
def files(draw: DrawFn) -> bytes:
    """A file: sound, lying, with a wrong length, cut, with bytes flipped, or noise."""
    header, end = draw(sound() | lying())
    text = json.dumps(header).encode()
    length = draw(st.just(len(text)) | st.integers(0, len(text) + 40) | st.sampled_from([2**32, 2**63, 2**64 - 1]))
    raw = bytearray(struct.pack("<Q", length) + text + bytes(end))
    for _ in range(draw(st.integers(0, 2))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.just(len(raw)) | st.integers(0, len(raw)))
    return draw(st.just(bytes(raw[:cut])) | st.just(bytes(raw)) | st.binary(max_size=60))


def outcome(path: Path) -> list[FileTensor] | WeightsError:
    try:
        return read_header(path)
    except WeightsError as error:
        return error


def check(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    tensors = outcome(path)
    if isinstance(tensors, WeightsError):
        assert str(path) in str(tensors)
        return
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    for tensor in tensors:
        assert tensor.offset == end
        assert tensor.nbytes == math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
        end += tensor.nbytes
    assert end == os.stat(path).st_size
    assert len({tensor.name for tensor in tensors}) == len(tensors)


@settings(max_examples=400, **QUIET)
@given(raw=files())
def test_any_file_is_refused_by_name_or_every_byte_has_one_owner(tmp_path: Path, raw: bytes) -> None:
    check(tmp_path / "x.safetensors", raw)


def random_json(rng: random.Random, depth: int = 0) -> Any:
    scalars = (None, True, -1, 0, 7, 2**48, 2**63, 2**64, 0.5, float("nan"), "", "F32", "F64", "BF16")
    kind = rng.randrange(4) if depth < 3 else 0
    if kind == 1:
        return [random_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 2:
        return {rng.choice("abc"): random_json(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice(scalars)


def random_file(rng: random.Random) -> bytes:
    """A sound file with some of these: a field replaced or swapped, a byte changed, a wrong length, an end cut off."""
    header: dict[str, Any] = {}
    end = 0
    for name in rng.sample("abcdefgh", rng.randrange(6)):
        dtype, shape = rng.choice(sorted(ITEM_BYTES)), [rng.randrange(5) for _ in range(rng.randrange(4))]
        begin, end = end, end + math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    for name in rng.sample(sorted(header), min(rng.randrange(3), len(header))):
        field = rng.choice(["dtype", "shape", "data_offsets", "more"])
        header[name][field] = rng.choice([random_json(rng), header[rng.choice(sorted(header))].get(field)])
    text = json.dumps(random_json(rng) if rng.random() < 0.05 else header).encode()
    length = len(text) if rng.random() < 0.9 else rng.choice([0, len(text) + rng.randrange(-9, 9), 2**63, 10**8])
    raw = bytearray(struct.pack("<Q", max(length, 0)) + text + bytes(max(end + rng.choice([0, 0, 0, 1, -1]), 0)))
    for _ in range(rng.choice([0, 0, 1, 2])):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw if rng.random() < 0.8 else raw[: rng.randrange(len(raw) + 1)])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_thousand_files_are_refused_by_name_or_every_byte_has_one_owner(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    read = 0
    for _ in range(10_000):
        raw = random_file(rng)
        check(tmp_path / "x.safetensors", raw)
        read += isinstance(outcome(tmp_path / "x.safetensors"), list)
    assert 1_000 < read < 9_000


@given(case=sound())
def test_a_sound_header_is_read(tmp_path_factory: pytest.TempPathFactory, case: tuple[dict[str, Any], int]) -> None:
    header, end = case
    text = json.dumps(header).encode()
    path = tmp_path_factory.mktemp("sound") / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    assert {tensor.name for tensor in read_header(path)} == set(header) - {"__metadata__"}
