"""Places of one tensor's items in an image, as a list of runs: the result of a loader that rearranges tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Runs:
    """Runs of items in the order of the file: `first` item and `count` of each, and its byte `at` of the image.

    `shape` and `dtype` (as headers call it) are those of the tensor in the files; `item`: bytes of an item in the
    image; `raw`: items are copied as they are. Without runs the tensor is not in the image.
    """

    shape: tuple[int, ...]
    dtype: str
    first: Ints
    count: Ints
    at: Ints
    item: int
    raw: bool

    def pieces(self, first: int, last: int, item: int) -> tuple[Ints, Ints, Ints]:
        """See Placement."""
        begin, end = np.maximum(self.first, first), np.minimum(self.first + self.count, last)
        kept = end > begin
        return begin[kept], end[kept], (self.at + (begin - self.first) * self.item)[kept]

    def covered(self, items: int, item: int) -> tuple[Ints, Ints]:
        """See Placement."""
        return self.at, self.count * self.item

    @cached_property
    def _digest(self) -> str:
        columns = b"".join(column.tobytes() for column in (self.first, self.count, self.at))
        return sha256(columns).hexdigest()[:32]

    def __repr__(self) -> str:
        return f"Runs({self.shape}, {self.dtype}, {self.item}, {self.raw}, {self._digest})"


def nowhere(shape: tuple[int, ...], dtype: str) -> Runs:
    """The runs of a tensor that is not in the image."""
    none = np.empty(0, dtype=np.int64)
    return Runs(shape, dtype, none, none, none, 1, True)
