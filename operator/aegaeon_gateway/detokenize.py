"""Token ids to text, piece by piece: the pieces joined are what decoding everything at once gives.

A character may be spread over several tokens; it is shown when it is whole. Byte-level vocabularies (GPT-2, Llama 3,
Qwen) are decoded exactly through their bytes; for all others a short window is decoded again with every token.
"""

from __future__ import annotations

import codecs
import json
import re
from functools import lru_cache
from typing import Protocol

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\ufffd"
_MAX_HELD_TOKENS = 16  # a character has at most 4 bytes; what is held longer is not going to become one


class Detokenizer(Protocol):
    """The state of one output."""

    def feed(self, token: int) -> str:
        """Take one token id; return the text that is now certain (often one token's, sometimes none)."""
        ...

    def flush(self) -> str:
        """The output has ended: return the rest, U+FFFD in place of broken characters."""
        ...


@lru_cache(maxsize=1)
def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for code points from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(256 + offset): byte for offset, byte in enumerate(others)})
    return table


class Vocabulary:
    """The bytes of every token and the detokenizer that fits the tokenizer's decoder."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.size = tokenizer.get_vocab_size(with_added_tokens=True)
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(token for token, content in added.items() if content.special)
        self._added = frozenset(added)
        decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
        self._byte_level = decoder.get("type") == "ByteLevel"
        self._bytes: dict[int, bytes] = {}

    def detokenizer(self) -> Detokenizer:
        """A fresh state. Special tokens make no text."""
        return ByteLevelDetokenizer(self) if self._byte_level else WindowDetokenizer(self.tokenizer)

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for, special tokens by their name; empty for an id without a token."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._spell(token)
        return known

    def _spell(self, token: int) -> bytes:
        content = self.tokenizer.id_to_token(token)
        if content is None:
            return b""
        if self._byte_level:
            return _byte_level_bytes(content)
        if token in self._added:
            return content.encode()
        if match := _BYTE_TOKEN.fullmatch(content):
            return bytes([int(match[1], 16)])
        return content.replace("\u2581", " ").encode()


def _byte_level_bytes(content: str) -> bytes:
    table = _byte_of_char()
    try:
        return bytes(table[char] for char in content)
    except KeyError:  # an added token with characters outside the alphabet stands for itself
        return content.encode()


class ByteLevelDetokenizer:
    """Exact for decoders of type ByteLevel: bytes in, whole characters out."""

    __slots__ = ("_decode", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def feed(self, token: int) -> str:
        if token in self._vocabulary.special:
            return ""
        return self._decode(self._vocabulary.bytes_of(token))

    def flush(self) -> str:
        return self._decode(b"", True)


class WindowDetokenizer:
    """For any decoder: decodes the last shown tokens together with the new ones and shows the difference.

    The shown tokens are the context that decides, for example, whether a leading space is kept. They move on only when
    they make text themselves, so a special token in between does not cost the next word its space.
    """

    __slots__ = ("_context", "_context_text", "_new", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._context_text = ""
        self._new: list[int] = []

    def feed(self, token: int) -> str:
        self._new.append(token)
        text = self._window()
        if text.endswith(_REPLACEMENT) and len(self._new) < _MAX_HELD_TOKENS:
            return ""
        return self._show(text)

    def flush(self) -> str:
        return self._show(self._window()) if self._new else ""

    def _window(self) -> str:
        return self._tokenizer.decode(self._context + self._new, skip_special_tokens=True)

    def _show(self, text: str) -> str:
        if len(text) <= len(self._context_text):
            return ""
        piece = text[len(self._context_text) :]
        self._context, self._new = self._new, []
        self._context_text = self._tokenizer.decode(self._context, skip_special_tokens=True)
        return piece
