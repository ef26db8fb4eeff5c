"""What models that ran keep on a GPU beside their slabs, on torch's device of tensors without contents: buffers are
counted by their sizes, graphs by their number, as the operator's estimate counts them.

Sixty models of four sizes of vocabulary, each of which decoded few sequences and many, in short contexts and long ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from benchmarks.report import BARS_MISSED, Row, report
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from aegaeon_operator.spec.engines import PASS_ROWS
from aegaeon_operator.spec.overhead import GRAPH_BYTES, LOGITS_BYTES
from aegaeon_sidecar.backends import MAX_GRAPHS, StepInput
from aegaeon_sidecar.backends.decodes import ROWS, Decodes, context_size
from aegaeon_sidecar.backends.graphs import Graphs
from aegaeon_sidecar.backends.passes import Passes
from aegaeon_sidecar.sampling import Masker

MIB = 1 << 20
VOCABULARIES = (32000, 128256, 151936, 262144)
LONGEST = 131072
SHAPES = tuple((sequences, tokens) for sequences in (1, ROWS[0] + 1) for tokens in (100, 3000))
BESIDE_GRAPHS_MIB = 120
_META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class Kept:
    """By models that ran. `nbytes`: on the device, beside graphs; `graphs`: of as many that were `captured`."""

    nbytes: int
    graphs: int
    captured: int


def kept(models: int, most: int = MAX_GRAPHS, shapes: Sequence[tuple[int, int]] = SHAPES) -> Kept:
    """Of so many models, which a device keeps `most` graphs of and each of which ran `shapes` (sequences, tokens)."""
    captures = _Captures()
    passes, masker = Passes(_META, Graphs(captures, most)), Masker(on_host=True)
    with _Living() as living, torch.inference_mode():
        ran = [
            Decodes(_Sized(VOCABULARIES[number % len(VOCABULARIES)]), LONGEST, passes, masker)
            for number in range(models)
        ]
        for sequences, tokens in shapes:
            blocks = np.zeros(-(-tokens // _Sized.block_tokens), dtype=np.int32)
            for model in ran:
                model.logits([StepInput((5,), tokens - 1, blocks, None)] * sequences)
    return Kept(living.nbytes, captures.alive, captures.seen)


class _Living(TorchDispatchMode):
    """Counts bytes of tensors without contents that were made while it was entered and are still there."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device == _META:
            storage = result.untyped_storage()
            weak = StorageWeakRef(storage)
            if weak.cdata not in self._made or self._made[weak.cdata][0].expired():
                self._made[weak.cdata] = weak, storage.nbytes()
        return result

    @property
    def nbytes(self) -> int:
        return sum(nbytes for weak, nbytes in self._made.values() if not weak.expired())


class _Sized:
    """Implements FixedModel, and computes nothing."""

    block_tokens, capacity, rows = 16, 1 << 20, ROWS

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def size(self, longest: int) -> int:
        return context_size(longest, LONGEST)

    def prepare(self, inputs: Sequence[StepInput], size: int) -> None:
        pass

    def forward(self, tokens: torch.Tensor, state: torch.Tensor, size: int) -> torch.Tensor:
        return torch.zeros(len(tokens), self.vocab_size, device=_META)


class _Captures:
    """A double of captures. `seen`: so far; `alive`: graphs that are still there."""

    def __init__(self) -> None:
        self.seen = self.alive = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        return _Replay(self, run)


class _Replay:
    def __init__(self, captures: _Captures, run: Callable[[], None]) -> None:
        self._captures, self._run = captures, run
        captures.seen += 1
        captures.alive += 1

    def __call__(self) -> None:
        self._run()

    def __del__(self) -> None:
        self._captures.alive -= 1


def main() -> int:
    """The figures; BARS_MISSED where a bar is."""
    sixty, alone = kept(60), kept(4)
    reserved = PASS_ROWS * LOGITS_BYTES + MAX_GRAPHS * GRAPH_BYTES
    rows = [
        Row("60 models that ran: beside graphs", sixty.nbytes / MIB, "MiB", BESIDE_GRAPHS_MIB, "<="),
        Row("each model beyond the first four: beside graphs", (sixty.nbytes - alone.nbytes) / 56, "bytes", 1.0, "<="),
        Row("60 models that ran: graphs captured", sixty.captured, "graphs"),
        Row("60 models that ran: graphs kept", sixty.graphs, "graphs", MAX_GRAPHS, "<="),
        Row(
            "both together, of what is estimated for logits and graphs",
            (sixty.nbytes + sixty.graphs * GRAPH_BYTES) / MIB,
            "MiB",
            reserved / MIB,
            "<=",
        ),
    ]
    return 0 if report("model_memory", rows) else BARS_MISSED


if __name__ == "__main__":
    sys.exit(main())
