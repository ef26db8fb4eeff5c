"""Admission by proof: a model is served once its shell has computed the same in every way in which it is used.

What is proved: what a token is computed from lies in the weights, and in the KV blocks that its sequence was given.
Sequences are computed over blocks full of NaN, their prompts whole and cut, decoded together, with metadata kept
between steps, moved to other blocks, and decoded in other groupings; every hidden state has to be that of one prefill
of the same tokens, over blocks of other numbers. A kind of attention that copies lengths or block tables, a layer that
reads an unwritten page, a state beside the KV cache: each shows as another state in the next step. As a control, a
decode over the blocks of another sequence must differ.

What is not: that vLLM's model is the one of its name (tests/backend_vllm holds families against transformers), nor
what begins beyond these lengths (a window of 4,096 tokens). Products of linear layers take nothing from other tokens:
small ones stand for them, so that a model of any size is proved without its weights and in a fraction of its load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from functools import cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.rows import Product
from aegaeon_sidecar.backends.vllm import kernels, surface
from aegaeon_sidecar.backends.vllm.shell import Shell, bind_kv
from aegaeon_sidecar.backends.vllm.sketch import sketched, zeros
from aegaeon_sidecar.backends.vllm.step import next_batch, states
from aegaeon_sidecar.domain.errors import ModelError
from aegaeon_sidecar.models.documents import MOST_CONFIG_BYTES, read_document
from aegaeon_sidecar.models.header import FileTensor
from aegaeon_sidecar.models.placement import CONFIG

STEPS = 4  # decodes of a sequence at most: in a new batch, in the next step, in blocks that moved, in other company
TOLERANCE = 1e-4  # of the largest part of a state
_COMPANY = (3, 0, 5, 1)  # who is together once all have been
_MARKS = 8  # ids at the beginning: padding and its like, whose embeddings may be zeros and their outputs no numbers
_NAN, _OTHER = 0xFF, 0x3C  # bytes that are no numbers, and small ones, in every dtype: what another model left there


def prove(shell: Shell, product: Product, bare: bool) -> None:
    """Raises ModelError with what was seen where the shell's states depend on how they are computed. `bare`: it has no
    weights yet. Steps of other models run in between. The shell has no KV blocks afterwards."""
    try:
        with sketched(shell, product, bare):
            _prove(shell)
    finally:
        shell.blocks = shell.batch = None


def proof_key(directory: Path, shell: Shell, files: Mapping[str, FileTensor]) -> str:
    """A hash of everything that the outcome depends on: config.json, the kinds and shapes of tensors (not their
    numbers, which the sketches do not read), the engine's computation, and the versions of vLLM, torch and this
    code."""
    model = shell.config.model_config
    tensors = sorted((tensor.name, tensor.shape, tensor.dtype) for tensor in files.values())
    engine = model.dtype, model.max_model_len, shell.block_tokens, shell.purpose, torch.get_num_threads()
    versions = surface.VERSION, surface.PLATFORM, kernels.PROCESSOR, kernels.LIBRARY.name, torch.__version__, _code()
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
    reference = trial.reference()
    if not all(bool(rows.isfinite().all()) for rows in reference):
        raise ModelError("its hidden states are no numbers, so nothing can be proved of it")
    for how, placed, computed in trial.passes():
        worst, difference = _furthest(computed, _rows(reference, placed))
        if not difference <= TOLERANCE:  # NaN is not
            number, position = placed[worst]
            raise ModelError(
                f"it computes token {position} of {len(reference[number])} otherwise {how} than in one prompt "
                f"(by {difference:.1g} of its largest part), so its answers would depend on others' requests; it is "
                "not served"
            )
    _check_reads(trial, reference)


def _rows(reference: Seq[Tensor], placed: Seq[_Placed]) -> Tensor:
    return torch.stack([reference[number][position] for number, position in placed])


def _furthest(computed: Tensor, expected: Tensor) -> tuple[int, float]:
    """The row that differs most, and by which part of its largest number; NaN is more than any."""
    differences = (computed - expected).abs().amax(1) / expected.abs().amax(1)
    worst = int(differences.nan_to_num(nan=torch.inf).argmax())
    return worst, float(differences[worst])


def _check_reads(trial: _Trial, reference: Seq[Tensor]) -> None:
    """A proof that could not fail is none: the last decode of a sequence, over the blocks of a longer one."""
    number, longer = 1, 3
    placed = [(number, len(reference[number]) - 1)]
    _, difference = _furthest(trial.decode(placed, {number: trial.tables[longer]}), _rows(reference, placed))
    if difference <= TOLERANCE:
        raise ModelError("its hidden states do not depend on its KV cache, so nothing can be proved of it")


_Placed = tuple[int, int]
"""A sequence, and the position of one of its tokens."""
_Part = tuple[int, int, int]
"""A sequence, and from which of its tokens on up to which."""
_Tables = Mapping[int, NDArray[np.int32]]
"""Of each sequence its blocks."""
_Pass = tuple[str, Seq[_Placed], Tensor]
"""How it was computed, whose states these are, and the states."""


class _Trial:
    """Sequences in blocks of their own, which are full of NaN; as many blocks are free, full of other numbers."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        block = shell.block_tokens
        # The first one fills a block with its first decode and begins another with its second. That block is zeros when
        # it begins, and is full, so never made zeros, in the reference: a page that is not written differs. Short ones
        # cost little. Prompts are computed up to the cuts first.
        self._prompts = (block - 1, 5, 2, 6, 3, 4)
        self._cuts = (block // 2, 5, 2, 4, 3, 2)
        self._now = [*self._prompts]
        known = min(53, int(shell.config.model_config.get_vocab_size()) - _MARKS)
        self._tokens = [
            [_MARKS + (5 * at + 7 * number) % known for at in range(prompt + STEPS)]
            for number, prompt in enumerate(self._prompts)
        ]
        firsts = np.cumsum([0, *(-(-len(tokens) // block) for tokens in self._tokens)]).tolist()
        self._half = firsts[-1]
        self.tables: _Tables = {
            number: np.arange(first, end, dtype=np.int32)[::-1].copy()
            for number, (first, end) in enumerate(pairwise(firsts))
        }
        memory = zeros(2 * self._half * shell.block_bytes)
        self._blocks = memory.view(2 * self._half, -1)
        self._blocks[: self._half], self._blocks[self._half :] = _NAN, _OTHER
        with surface.EXCLUSIVE:
            bind_kv(shell, memory)

    def reference(self) -> list[Tensor]:
        """The states of all tokens of each sequence, computed at once in the free blocks."""
        parts = [(number, 0, len(tokens)) for number, tokens in enumerate(self._tokens)]
        rows = self._compute(parts, {number: table + self._half for number, table in self.tables.items()}, None)
        return list(torch.split(rows, [end for _, _, end in parts]))

    def passes(self) -> Iterator[_Pass]:
        """The passes of an engine over sequences. Decodes of one list of sequences keep attention's metadata."""
        first = [(number, 0, cut) for number, cut in enumerate(self._cuts)]
        rest = [(number, cut, self._prompts[number]) for number, _, cut in first if cut < self._prompts[number]]
        for how, parts in (("beside other prompts", first), ("in a prompt that is cut", rest)):
            computed = self._compute(parts, self.tables, range(len(parts)))
            yield how, [(number, end - 1) for number, _, end in parts], computed
        yield self._decoded("in a step of decodes", [*self.tables])
        yield self._decoded("in the next step of decodes", [*self.tables])
        self._move()
        yield self._decoded("in blocks that moved", [*self.tables])
        yield self._decoded("in other company", _COMPANY)

    def decode(self, placed: Seq[_Placed], tables: _Tables) -> Tensor:
        """The states of one token of each of these sequences."""
        parts = [(number, position, position + 1) for number, position in placed]
        return self._compute(parts, tables, range(len(parts)))

    def _decoded(self, how: str, group: Seq[int]) -> _Pass:
        placed = [(number, self._now[number]) for number in group]
        for number in group:
            self._now[number] += 1
        return how, placed, self.decode(placed, self.tables)

    def _compute(self, parts: Seq[_Part], tables: _Tables, rows: Seq[int] | None) -> Tensor:
        shell = self._shell
        inputs = [
            StepInput(self._tokens[number][begin:end], begin, tables[number], None) for number, begin, end in parts
        ]
        with surface.EXCLUSIVE, torch.inference_mode():
            assert shell.blocks is not None  # bound above
            batch = next_batch(shell, shell.blocks, inputs)
            return states(shell, batch, batch.last_rows(rows)).float()

    def _move(self) -> None:
        """All blocks to the free ones, in another order; what they leave is NaN."""
        self._blocks[self._half :] = self._blocks[: self._half].flip(0)
        self._blocks[: self._half] = _NAN
        self.tables = {number: 2 * self._half - 1 - table for number, table in self.tables.items()}
