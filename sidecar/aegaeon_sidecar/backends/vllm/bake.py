"""Images of weights that vLLM transforms while it loads them, and the test that admits their shells.

A model whose kernels keep copies of weights outside its parameters would go on computing with them after a switch: the
move test finds it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.vllm import surface
from aegaeon_sidecar.backends.vllm.parameters import show
from aegaeon_sidecar.backends.vllm.shell import Shell, bind_kv, image_of, let_go
from aegaeon_sidecar.backends.vllm.step import forward
from aegaeon_sidecar.domain.errors import ModelError

_TOKENS = 40  # more than a block, and no multiple of one
_PIECE_BYTES = 64 << 20


class Baked:
    """The image of one model: written from memory once, made by another load of vLLM after that."""

    def __init__(self, shell: Shell, again: Callable[[], Shell]) -> None:
        """Raises ModelError when the shell does not compute with the bytes of its image alone."""
        self._again = again
        self._image: Tensor | None = _moved(shell)

    def write(self, file: int) -> None:
        """The whole image into an open file."""
        image = self._image if self._image is not None else image_of(self._again())
        data = image.numpy().data
        for start in range(0, len(data), _PIECE_BYTES):
            _write(file, data[start : start + _PIECE_BYTES], start)

    def release(self) -> None:
        """The memory: the shell's parameters are elsewhere."""
        self._image = None


def _write(file: int, data: memoryview, at: int) -> None:
    while data:
        count = os.pwrite(file, data, at)
        data, at = data[count:], at + count


def _moved(shell: Shell) -> Tensor:
    """The image, which the shell's parameters are views of from here on."""
    bind_kv(shell, torch.zeros(4 * shell.block_bytes, dtype=torch.uint8))
    before = _logits(shell)
    if before.isnan().any():
        raise ModelError("its logits are no numbers: its files are damaged, or not of the quantisation that they name")
    image = image_of(shell)
    with surface.EXCLUSIVE:
        show(shell.model, shell.places, image)
    let_go(shell)
    after = _logits(shell)
    kept = image.clone()
    image.zero_()
    without = _logits(shell)
    image.copy_(kept)
    if not torch.equal(before, after):
        raise ModelError("its outputs change when its weights move to another address, so it cannot be switched")
    if torch.equal(before, without):
        raise ModelError("its kernels keep a copy of the weights outside its parameters, so it cannot be switched")
    return image


def _logits(shell: Shell) -> Tensor:
    assert shell.blocks is not None  # bound above
    shell.blocks.zero_()
    vocabulary = shell.config.model_config.get_vocab_size()
    tokens = [(7 * i + 3) % vocabulary for i in range(_TOKENS)]
    blocks = np.arange(1, 4, dtype=np.int32)
    parts = StepInput(tokens[:-1], 0, blocks, None), StepInput(tokens[-1:], _TOKENS - 1, blocks, None)
    logits = []
    for part in parts:
        with surface.EXCLUSIVE, torch.inference_mode():
            logits.append(forward(shell, [part], [0]))
    return torch.cat(logits)
