"""The decoders of `tokenizers`, one token at a time: what they give out, joined, is what they give for all at once.

The library decodes whole lists. Each of its decoders is here as a stage that takes pieces in order and gives out those
that no later token can change. A stage does a bounded amount of work for each piece, however long the output is.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

from aegaeon_gateway.errors import TokenizerError

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""a token of ByteFallback's vocabularies that stands for one byte"""
_REPLACEMENT = "\ufffd"


class Stage(Protocol):
    """The state of one decoder in one output."""

    def feed(self, piece: str) -> Sequence[str]:
        """Take the next piece; return those that are certain now."""
        ...

    def flush(self) -> Sequence[str]:
        """There is no further piece: return the rest."""
        ...


class Each:
    """Replace, and Strip before pieces are joined: every piece by itself."""

    __slots__ = ("_change",)

    def __init__(self, change: Callable[[str], str]) -> None:
        self._change = change

    def feed(self, piece: str) -> Sequence[str]:
        return (self._change(piece),)

    def flush(self) -> Sequence[str]:
        return ()


class FirstAndRest:
    """Metaspace and WordPiece: the first piece in one way, all others in another."""

    __slots__ = ("_change", "_rest")

    def __init__(self, first: Callable[[str], str], rest: Callable[[str], str]) -> None:
        self._change = first
        self._rest = rest

    def feed(self, piece: str) -> Sequence[str]:
        change, self._change = self._change, self._rest
        return (change(piece),)

    def flush(self) -> Sequence[str]:
        return ()


class LastDiffers:
    """BPEDecoder: the suffix of a word is a space, but for the last piece's, so that one piece is held."""

    __slots__ = ("_held", "_suffix")

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._held: str | None = None

    def feed(self, piece: str) -> Sequence[str]:
        held, self._held = self._held, piece
        return () if held is None else (held.replace(self._suffix, " "),)

    def flush(self) -> Sequence[str]:
        held, self._held = self._held, None
        return () if held is None else (held.replace(self._suffix, ""),)


class ByteRuns:
    """ByteFallback: a run of byte tokens is one text if the whole run is UTF-8, else U+FFFD for each byte.

    A run is held until it ends, because its last byte can still change what the first ones mean.
    """

    __slots__ = ("_run",)

    def __init__(self) -> None:
        self._run = bytearray()

    def feed(self, piece: str) -> Sequence[str]:
        if len(piece) == 6 and (match := BYTE_TOKEN.fullmatch(piece)):
            self._run.append(int(match[1], 16))
            return ()
        return (*self.flush(), piece) if self._run else (piece,)

    def flush(self) -> Sequence[str]:
        run, self._run = self._run, bytearray()
        if not run:
            return ()
        try:
            return (run.decode(),)
        except UnicodeDecodeError:
            return (_REPLACEMENT * len(run),)


class ByteLevel:
    """ByteLevel: every character is a byte. Characters are given out when they are whole."""

    __slots__ = ("_decode",)

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def feed(self, piece: str) -> Sequence[str]:
        return (self._decode(byte_level_bytes(piece)),)

    def flush(self) -> Sequence[str]:
        return (self._decode(b"", True),)


class StripEnds:
    """Strip of the joined text: `start` characters at most at its beginning, `stop` at its end."""

    __slots__ = ("_char", "_held", "_start", "_stop")

    def __init__(self, char: str, start: int, stop: int) -> None:
        self._char = char
        self._start = start
        self._stop = stop
        self._held = ""

    def feed(self, piece: str) -> Sequence[str]:
        if self._start and piece:
            piece = self._strip_start(piece)
        if not self._stop:
            return (piece,)
        text = self._held + piece
        tail = min(self._stop, len(text) - len(text.rstrip(self._char)))
        self._held = text[len(text) - tail :]
        return (text[: len(text) - tail],)

    def flush(self) -> Sequence[str]:
        self._held = ""
        return ()

    def _strip_start(self, piece: str) -> str:
        kept = piece.lstrip(self._char)
        strippable = min(self._start, len(piece) - len(kept))
        self._start = self._start - strippable if strippable == len(piece) else 0
        return piece[strippable:]


@lru_cache(maxsize=1)
def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for code points from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    unprintable = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(256 + offset): byte for offset, byte in enumerate(unprintable)})
    return table


def byte_level_bytes(content: str) -> bytes:
    """The bytes of a token of a ByteLevel vocabulary."""
    table = _byte_of_char()
    try:
        return bytes(table[char] for char in content)
    except KeyError:  # an added token with characters outside the alphabet stands for itself
        return content.encode()


StageMaker = Callable[[], Stage]


def stages_of(decoder: dict[str, Any] | None) -> tuple[StageMaker, ...]:
    """Makers of the stages that a tokenizer.json's decoder is. Raises TokenizerError for one that is not known here.

    Without a decoder the library puts a space between any two tokens.
    """
    if decoder is None:
        return (lambda: FirstAndRest(str, " {}".format),)
    makers: list[StageMaker] = []
    joined = False
    for part in _flat(decoder):
        if part["type"] == "Fuse":
            joined = True
            continue
        maker = _after_fuse(part) if joined else _before_fuse(part)
        if maker is None:
            where = " behind a Fuse" if joined else ""
            raise TokenizerError(f"the tokenizer's decoder {part['type']}{where} is not supported")
        makers.append(maker)
        joined = joined or part["type"] == "ByteLevel"
    return tuple(makers)


def _flat(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        return [inner for part in decoder["decoders"] for inner in _flat(part)]
    return [decoder]


def _after_fuse(part: dict[str, Any]) -> StageMaker | None:
    """Decoders of one whole text."""
    if part["type"] == "Strip":
        return lambda: StripEnds(part["content"], part["start"], part["stop"])
    if part["type"] == "Replace" and len(part["pattern"].get("String", "")) == 1:  # which no two pieces make together
        return _before_fuse(part)
    return None


def _before_fuse(part: dict[str, Any]) -> StageMaker | None:
    makers: dict[str, Callable[[dict[str, Any]], StageMaker | None]] = {
        "ByteFallback": lambda _: ByteRuns,
        "ByteLevel": lambda _: ByteLevel,
        "Replace": _replace,
        "Strip": _strip,
        "Metaspace": _metaspace,
        "WordPiece": _word_piece,
        "BPEDecoder": lambda settings: lambda: LastDiffers(settings["suffix"]),
    }
    return makers[part["type"]](part) if part["type"] in makers else None


def _replace(part: dict[str, Any]) -> StageMaker | None:
    """None for a regular expression, whose cost has no bound, and for an empty text."""
    old, new = part["pattern"].get("String"), part["content"]
    return (lambda: Each(_replacing(old, new))) if old else None


def _metaspace(part: dict[str, Any]) -> StageMaker:
    rest = _replacing(part["replacement"], " ")
    first = rest if part.get("prepend_scheme") == "never" else _replacing(part["replacement"], "")
    return lambda: FirstAndRest(first, rest)


def _replacing(old: str, new: str) -> Callable[[str], str]:
    return lambda piece: piece.replace(old, new)


def _strip(part: dict[str, Any]) -> StageMaker:
    char, start, stop = part["content"], part["start"], part["stop"]

    def change(piece: str) -> str:
        head = min(start, len(piece) - len(piece.lstrip(char)))
        rest = piece[head:]
        return rest[: len(rest) - min(stop, len(rest) - len(rest.rstrip(char)))]

    return lambda: Each(change)


_CLEANUP = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m")),
    *((" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)


def _word_piece(part: dict[str, Any]) -> StageMaker:
    """Decode WordPiece: a piece with the prefix is joined, a space is put before all else; the clean-up is of each
    piece alone."""
    prefix, cleanup = part["prefix"], _CLEANUP if part["cleanup"] else ()

    def first(piece: str) -> str:
        for old, new in cleanup:
            piece = piece.replace(old, new)
        return piece

    def rest(piece: str) -> str:
        return first(piece.removeprefix(prefix) if piece.startswith(prefix) else f" {piece}")

    return lambda: FirstAndRest(first, rest)
