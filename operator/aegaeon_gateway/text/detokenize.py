"""Token ids to text, piece by piece: the pieces joined are what decoding everything at once gives.

A character may be spread over several tokens; it is shown when it is whole. Byte-level vocabularies (GPT-2, Llama 3,
Qwen) are decoded through their bytes, all others by the stages in `decoders`.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from typing import Protocol

from tokenizers import AddedToken

from aegaeon_gateway.text.decoders import BYTE_TOKEN, Stage, byte_level_bytes, stages_of


class Detokenizer(Protocol):
    """The state of one output."""

    def feed(self, token: int) -> str:
        """Take one token id; return the text that is now certain (often one token's, sometimes none)."""
        ...

    def flush(self) -> str:
        """The output has ended: return the rest, U+FFFD in place of broken characters."""
        ...


class Tokens(Protocol):
    """The interface of a `tokenizers.Tokenizer`, or of a table of its tokens, to a vocabulary."""

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]: ...
    def to_str(self) -> str: ...
    def id_to_token(self, id: int) -> str | None: ...


class Vocabulary:
    """The bytes of every token and the detokenizer that fits the tokenizer's decoder.

    Raises TokenizerError for a decoder that is not known.
    """

    def __init__(self, tokenizer: Tokens) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(token for token, content in added.items() if content.special)
        self._added = frozenset(added)
        decoder = json.loads(tokenizer.to_str()).get("decoder")
        self._byte_level = decoder is not None and decoder.get("type") == "ByteLevel"
        self._stages = () if self._byte_level else stages_of(decoder)
        self._bytes: dict[int, bytes] = {}
        self._pieces: dict[int, str | None] = {}
        self._hidden: dict[frozenset[str], frozenset[int]] = {frozenset(): self.special}

    def detokenizer(self, *, skip_special: bool = True, marks: frozenset[str] = frozenset()) -> Detokenizer:
        """A fresh state. Special tokens make no text, unless they are not to be skipped or are among the `marks`."""
        hidden = self._without(marks) if skip_special else frozenset()
        if self._byte_level:
            return ByteLevelDetokenizer(self, hidden)
        return StagedDetokenizer(self, [make() for make in self._stages], hidden)

    def _without(self, marks: frozenset[str]) -> frozenset[int]:
        """Special tokens that are none of these."""
        if marks not in self._hidden:
            shown = {token for token in self.special if self._tokenizer.id_to_token(token) in marks}
            self._hidden[marks] = self.special - shown
        return self._hidden[marks]

    def piece_of(self, token: int) -> str | None:
        """The string that decoders get for a token; None for an id without one."""
        if token not in self._pieces:
            self._pieces[token] = self._tokenizer.id_to_token(token)
        return self._pieces[token]

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for, special tokens by their name; empty for an id without a token."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._spell(token)
        return known

    def _spell(self, token: int) -> bytes:
        content = self._tokenizer.id_to_token(token)
        if content is None:
            return b""
        if self._byte_level:
            return byte_level_bytes(content)
        if token in self._added:
            return content.encode()
        if match := BYTE_TOKEN.fullmatch(content):
            return bytes([int(match[1], 16)])
        return content.replace("\u2581", " ").encode()


class ByteLevelDetokenizer:
    """Exact for decoders of type ByteLevel: bytes in, whole characters out."""

    __slots__ = ("_decode", "_hidden", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, hidden: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._hidden = hidden
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def feed(self, token: int) -> str:
        if token in self._hidden:
            return ""
        return self._decode(self._vocabulary.bytes_of(token))

    def flush(self) -> str:
        return self._decode(b"", True)


class StagedDetokenizer:
    """For the other decoders: each token passes through a stage for each decoder."""

    __slots__ = ("_hidden", "_stages", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, stages: Sequence[Stage], hidden: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._stages = stages
        self._hidden = hidden

    def feed(self, token: int) -> str:
        piece = None if token in self._hidden else self._vocabulary.piece_of(token)
        return "" if piece is None else _through(self._stages, (piece,))

    def flush(self) -> str:
        text = ""
        for number, stage in enumerate(self._stages):
            text += _through(self._stages[number + 1 :], stage.flush())
        return text


def _through(stages: Sequence[Stage], pieces: Sequence[str]) -> str:
    for stage in stages:
        pieces = stage.feed(pieces[0]) if len(pieces) == 1 else [out for piece in pieces for out in stage.feed(piece)]
    return "".join(pieces)
