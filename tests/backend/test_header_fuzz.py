"""Headers that lie, by the thousand: refused with the file's name, or naming bytes that are there, once each.

The short form runs with the others; `pytest -m slow tests/backend/test_header_fuzz.py` tries 100,000.
"""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from aegaeon_sidecar.errors import WeightsError
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


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=100_000, **QUIET)
@given(raw=files())
def test_a_hundred_thousand_files_are_refused_by_name_or_every_byte_has_one_owner(tmp_path: Path, raw: bytes) -> None:
    check(tmp_path / "x.safetensors", raw)


@given(case=sound())
def test_a_sound_header_is_read(tmp_path_factory: pytest.TempPathFactory, case: tuple[dict[str, Any], int]) -> None:
    header, end = case
    text = json.dumps(header).encode()
    path = tmp_path_factory.mktemp("sound") / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    assert {tensor.name for tensor in read_header(path)} == set(header) - {"__metadata__"}
