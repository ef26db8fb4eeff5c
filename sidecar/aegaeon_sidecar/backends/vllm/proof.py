"""Admission by proof: a model is served once its shell has computed the same in every way in which it is used.

What is proved: what a token is computed from lies in the weights, and in the KV blocks that its sequence was given.
Sequences are decoded together and in other groupings, with metadata kept between steps, over blocks full of NaN and
then of other numbers, and moved to other blocks half-way; every hidden state has to be that of one prefill of the same
tokens. A kind of attention that copies lengths or block tables, a layer that reads an unwritten page, a
state beside the KV cache: each shows as another state. As a control, a decode over another sequence's blocks must
differ.

What is not: that vLLM's model is the one of its name (tests/backend_vllm holds families against transformers), nor
what begins beyond these lengths (a window of 4,096 tokens). Products of linear layers take nothing from other tokens:
small ones stand for them, so that a model of any size is proved without its weights and in a fraction of its load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.rows import Product
from aegaeon_sidecar.backends.vllm import surface
from aegaeon_sidecar.backends.vllm.shell import Shell, bind_kv
from aegaeon_sidecar.backends.vllm.sketch import sketched
from aegaeon_sidecar.backends.vllm.step import next_batch, states
from aegaeon_sidecar.domain.errors import ModelError
from aegaeon_sidecar.models.documents import MOST_CONFIG_BYTES, read_document
from aegaeon_sidecar.models.header import FileTensor
from aegaeon_sidecar.models.placement import CONFIG

# Tokens: decodes begin before, at and behind the borders of blocks. Of sequences and steps as many as cost least, since
# a pass costs a small model as much as many rows of a large one.
PROMPTS = (2, 30, 5, 33, 3, 6, 28, 33)
STEPS = 6  # decodes of each sequence
CUT = 17  # where the second run cuts its prompts
TOLERANCE = 1e-4  # of the largest part of a state
# Who is together in the second run, step after step.
_GROUPS = (((3, 7, 0, 5, 2, 1, 4, 6),), ((0, 4, 7), (1, 2, 6, 3, 5)), ((5, 2, 0, 6, 1, 3, 7, 4),))
_MARKS = 8  # ids at the beginning: padding and its like, whose embeddings may be zeros and their outputs no numbers
_OTHER = 0x3C  # bytes that are small numbers in every dtype: what another model left there
_NAN = 0xFF


def prove(shell: Shell, product: Product, bare: bool) -> None:
    """Raises ModelError with what was seen where the shell's states depend on how they are computed. `bare`: it has no
    weights yet. Steps of other models run in between. The shell has no KV blocks afterwards."""
    try:
        with sketched(shell, product, bare):
            _prove(shell)
    finally:
        shell.blocks = shell.batch = None


def proof_key(directory: Path, shell: Shell, files: Mapping[str, FileTensor]) -> str:
    """Of all that the outcome depends on: what config.json says, the kinds and shapes of tensors (not their numbers,
    which the sketches do not read), how the engine computes, and the versions of vLLM, of torch and of this code."""
    model = shell.config.model_config
    tensors = sorted((tensor.name, tensor.shape, tensor.dtype) for tensor in files.values())
    engine = model.dtype, model.max_model_len, shell.block_tokens, shell.purpose, torch.get_num_threads()
    versions = surface.VERSION, surface.PLATFORM, surface.PROCESSOR, surface.KERNELS.name, torch.__version__, _code()
    config = sha256(read_document(directory / CONFIG, MOST_CONFIG_BYTES)).hexdigest()
    return sha256(repr((config, tensors, engine, versions)).encode()).hexdigest()[:32]


@cache
def _code() -> str:
    """A hash of this backend's own source: a version alone would not tell two builds of it apart."""
    digest = sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _prove(shell: Shell) -> None:
    trial = _Trial(shell)
    reference = trial.prefill()
    if not all(bool(state.isfinite().all()) for state in reference):
        raise ModelError("its hidden states are no numbers, so nothing can be proved of it")
    for fill, run in ((_NAN, trial.together), (_OTHER, trial.apart)):
        trial.clear(fill)
        for number, position, state in run():
            _compare(state, reference[number][position], number, position, run.__doc__ or "")
    _check_reads(trial, reference)


def _compare(state: Tensor, wanted: Tensor, number: int, position: int, how: str) -> None:
    difference = float((state - wanted).abs().max() / wanted.abs().max())
    if not difference <= TOLERANCE:  # NaN is not
        raise ModelError(
            f"it computes token {position} of {PROMPTS[number] + STEPS} otherwise {how} than in one prompt (by "
            f"{difference:.1g} of its largest part), so its answers would depend on others' requests; it is not served"
        )


def _check_reads(trial: _Trial, reference: Seq[Tensor]) -> None:
    """A proof that could not fail is none."""
    number, position = len(PROMPTS) - 1, PROMPTS[-1] + STEPS - 1
    swapped = [*trial.tables[:-1], trial.tables[-2]]  # as long a table
    state = trial.decode([(number, position)], swapped)[0]
    expected = reference[number][position]
    if float((state - expected).abs().max() / expected.abs().max()) <= TOLERANCE:
        raise ModelError("its hidden states do not depend on its KV cache, so nothing can be proved of it")


_Placed = tuple[int, int]
"""A sequence, and the position of one of its tokens."""
_Tables = Seq[NDArray[np.int32]]


class _Trial:
    """Sequences of PROMPTS + STEPS tokens in blocks of their own, of which there are twice as many as they fill."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        ends = [prompt + STEPS for prompt in PROMPTS]
        known = min(53, int(shell.config.model_config.get_vocab_size()) - _MARKS)
        self._tokens = [
            [_MARKS + (5 * at + 7 * number) % known for at in range(end)] for number, end in enumerate(ends)
        ]
        counts = [-(-end // shell.block_tokens) for end in ends]
        self._half = sum(counts)
        firsts = np.cumsum([0, *counts[:-1]])
        self.tables: _Tables = [
            np.arange(first, first + count, dtype=np.int32)[::-1].copy()
            for first, count in zip(firsts, counts, strict=True)
        ]
        self._memory = torch.empty(2 * self._half * shell.block_bytes, dtype=torch.uint8)
        with surface.EXCLUSIVE:
            bind_kv(shell, self._memory)

    def clear(self, byte: int) -> None:
        """Every byte of every block."""
        self._memory.fill_(byte)

    def prefill(self) -> list[Tensor]:
        """Of each sequence the states of all of its tokens, computed at once."""
        self.clear(0)
        rows = self._compute(
            [(number, 0, len(tokens)) for number, tokens in enumerate(self._tokens)], self.tables, None
        )
        return list(torch.split(rows, [len(tokens) for tokens in self._tokens]))

    def together(self) -> Iterator[tuple[int, int, Tensor]]:
        """beside others, in blocks that move"""
        yield from self._begin(0)
        tables = self.tables
        for step in range(STEPS):
            if step == STEPS // 2:
                tables = self._move()
            yield from self._decoded(range(len(PROMPTS)), step, tables)

    def apart(self) -> Iterator[tuple[int, int, Tensor]]:
        """in changing company, its prompt cut"""
        yield from self._begin(CUT)
        for step in range(STEPS):
            for group in _GROUPS[step % len(_GROUPS)]:
                yield from self._decoded(group, step, self.tables)

    def decode(self, placed: Seq[_Placed], tables: _Tables) -> Tensor:
        """The states of one token of each of these sequences."""
        parts = [(number, position, position + 1) for number, position in placed]
        return self._compute(parts, tables, range(len(parts)))

    def _begin(self, cut: int) -> Iterator[tuple[int, int, Tensor]]:
        """The prompts, as far as `cut` first."""
        spans = [
            (number, begin, end)
            for number, prompt in enumerate(PROMPTS)
            for begin, end in ((0, min(cut, prompt)), (min(cut, prompt), prompt))
        ]
        for half in (spans[::2], spans[1::2]):
            if parts := [part for part in half if part[1] < part[2]]:
                computed = self._compute(parts, self.tables, range(len(parts)))
                yield from ((number, end - 1, state) for (number, _, end), state in zip(parts, computed, strict=True))

    def _decoded(self, group: Seq[int], step: int, tables: _Tables) -> Iterator[tuple[int, int, Tensor]]:
        placed = [(number, PROMPTS[number] + step) for number in group]
        for (number, position), state in zip(placed, self.decode(placed, tables), strict=True):
            yield number, position, state

    def _compute(self, parts: Seq[tuple[int, int, int]], tables: _Tables, wanted: Seq[int] | None) -> Tensor:
        shell = self._shell
        inputs = [
            StepInput(self._tokens[n][begin:end], begin, tables[n], None, prompt=end - begin > 1)
            for n, begin, end in parts
        ]
        with surface.EXCLUSIVE, torch.inference_mode():
            assert shell.blocks is not None  # bound above
            batch = next_batch(shell, shell.blocks, inputs)
            return states(shell, batch, batch.last_rows(wanted)).float()

    def _move(self) -> _Tables:
        """All blocks to the other half, in another order; what they leave is NaN."""
        blocks = self._memory.view(2 * self._half, -1)
        blocks[self._half :] = blocks[: self._half].flip(0)
        blocks[: self._half] = _NAN
        return [2 * self._half - 1 - table for table in self.tables]
