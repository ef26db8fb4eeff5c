"""White space between the parts of a JSON text, of which no run may have more than MAX_WHITE_SPACE characters.

A model that has lost its thread would write nothing else until its limit. A grammar could state the bound, but
llguidance 1.7, which vLLM requires, would not hold outputs to it; held here it is the same for every version.
"""

from __future__ import annotations

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

MAX_WHITE_SPACE = 40
WORD_BITS = 32
_SPACES = b" \t\n\r"
_QUOTE, _BACKSLASH = b'"\\'


class LeadingSpaces:
    """The white space at the beginning of each token of a vocabulary, and the tokens that can continue a run of it."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        """Takes 0.2 s for 150,000 tokens."""
        self._tokenizer = tokenizer
        self._leading = np.fromiter(map(self._count, range(tokenizer.vocab_size)), np.uint8, tokenizer.vocab_size)
        self._masks: dict[int, NDArray[np.int32]] = {}

    def text(self, tokens: list[int]) -> bytes:
        """The bytes that these tokens add to an output."""
        return bytes(self._tokenizer.decode_bytes(tokens))

    def mask(self, most: int) -> NDArray[np.int32]:
        """int32 [words]: a bit for each token that begins with no more than `most` characters of white space."""
        if most not in self._masks:
            bits = np.zeros(-(-self._leading.size // WORD_BITS) * WORD_BITS, dtype=np.bool_)
            bits[: self._leading.size] = self._leading <= most
            self._masks[most] = np.packbits(bits, bitorder="little").view(np.int32)
        return self._masks[most]

    def _count(self, token: int) -> int:
        text = self.text([token])
        return min(len(text) - len(text.lstrip(_SPACES)), 255)


class WhiteSpace:
    """The run of white space at the end of one output, unless it is within a string."""

    __slots__ = ("_escaped", "_in_string", "_leading", "_run")

    def __init__(self, leading: LeadingSpaces) -> None:
        self._leading = leading
        self._run = 0
        self._in_string = False
        self._escaped = False

    def accept(self, tokens: list[int]) -> None:
        """Extend the output by these tokens."""
        for byte in self._leading.text(tokens):
            if self._in_string:
                self._in_string = self._escaped or byte != _QUOTE
                self._escaped = not self._escaped and byte == _BACKSLASH
            elif byte in _SPACES:
                self._run += 1
            else:
                self._run = 0
                self._in_string = byte == _QUOTE

    def bound(self, words: NDArray[np.int32]) -> None:
        """Clear the bits of tokens that would make the run too long, unless no other token is allowed."""
        if self._in_string:
            return
        bounded = words & self._leading.mask(MAX_WHITE_SPACE - self._run)
        if bounded.any():
            words[:] = bounded
