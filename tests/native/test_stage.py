"""The stage ring's formats: all 16-bit numbers, and float32s at every border, become what torch makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from aegaeon_native import StageRing

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def numbers(name: str) -> torch.Tensor:
    every_16_bit = np.arange(1 << 16, dtype=np.uint16)
    if name != "F32":
        return torch.from_numpy(every_16_bit).view(DTYPES[name])
    # The upper half of a float32 in every form, the lower one around each border at which it is rounded.
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x1FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)
    return torch.from_numpy(((every_16_bit.astype(np.uint32) << 16)[:, None] | lower).ravel()).view(torch.float32)


@pytest.mark.parametrize("of", DTYPES)
@pytest.mark.parametrize("to", DTYPES)
def test_numbers_round_as_in_torch(tmp_path: Path, of: str, to: str) -> None:
    source = numbers(of)
    raw = source.view(torch.uint8).numpy()
    path = tmp_path / "numbers"
    path.write_bytes(raw.tobytes())
    target = torch.zeros(len(source), dtype=DTYPES[to])
    formats = StageRing.formats()
    table = np.array([[0, 0, raw.nbytes, 1]], dtype=np.uint64)
    parts = np.array([[0, raw.nbytes, formats.index(of), 0]], dtype=np.uint64)
    ring = StageRing(raw.nbytes, 1, 1)
    assert ring.run([str(path)], table, parts, [target.data_ptr()], -1, 0, formats.index(to), None, lambda done: True)
    expected = source.to(DTYPES[to])
    assert torch.equal(target.isnan(), expected.isnan())
    bits = torch.int32 if to == "F32" else torch.int16
    assert torch.equal(target.view(bits)[~target.isnan()], expected.view(bits)[~expected.isnan()])


def test_exceptions_of_a_callback_propagate_from_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(8192))
    table = np.array([[0, 0, 4096, 0], [0, 4096, 4096, 0]], dtype=np.uint64)
    nothing = np.empty((0, 4), dtype=np.uint64)

    def refuse(index: int, data: object) -> None:
        raise KeyError(index)

    def halt(done: int) -> bool:
        raise InterruptedError

    ring = StageRing(4096, 2, 1)
    with pytest.raises(KeyError):
        ring.run([str(tmp_path / "file")], table, nothing, [], -1, 0, 0, refuse, lambda done: True)
    with pytest.raises(InterruptedError):
        ring.run([str(tmp_path / "file")], table, nothing, [], -1, 0, 0, None, halt)
    assert ring.run([str(tmp_path / "file")], table, nothing, [], -1, 0, 0, None, lambda done: True)
