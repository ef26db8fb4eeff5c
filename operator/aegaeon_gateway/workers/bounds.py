"""Limits of a model's text files, so that neither loading nor using them takes more than a gateway has.

The decoder is the one part of a tokenizer that runs on the gateway's loop, with every token. So only kinds whose cost
is linear in a few tokens are served, and no chain of replacements may make a text more than 16 times as long.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aegaeon_gateway.errors import TokenizerError

BYTES_PER_TOKEN = 32
"""text that a token of a prompt may stand for on average; English has 4.5, tables full of spaces some 15"""
FILE_BYTES = {"config.json": 4 << 20, "generation_config.json": 1 << 20, "tokenizer_config.json": 16 << 20}
"""of files that are read whole as JSON"""
OTHER_FILE_BYTES = 64 << 20
"""of any other: the largest tokenizer.json of a known model has 33 MiB"""
FOLDER_BYTES = 128 << 20
RESIDENT_BYTES = 768 << 20
"""that a loaded model may keep; one of 150,000 tokens has 106 MB, and the first one of a class imports that class"""
VOCABULARY_TOKENS = 4 << 20
VOCABULARY_BYTES = 64 << 20
ADDED_TOKENS = 64 << 10
"""beside the vocabulary proper: each is an object in the gateway; Gemma 3 has 6,414"""
TOKEN_BYTES = 1024
"""of one token's string; the longest of known models has 256"""
_DECODERS = {"BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece"}
_DECODER_STEPS = 16
_DECODER_BYTES = 64 << 10
"""of its description, which the gateway's loop parses"""
_GROWTH = 16.0
TEXT_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.jinja")


def check_resident(size: int) -> None:
    """Raises TokenizerError for a model that keeps too much memory."""
    if size > RESIDENT_BYTES:
        raise TokenizerError(f"the tokenizer keeps {size >> 20} MiB of memory; {RESIDENT_BYTES >> 20} are allowed")


def check_files(directory: Path) -> None:
    """Raises TokenizerError for a file of text that is too large."""
    total = 0
    for path in sorted({path for name in (*FILE_BYTES, *TEXT_FILES) for path in directory.glob(name)}):
        if not (path.is_file() or path.is_dir()):
            raise TokenizerError(f"{path.name} is no file")  # to open a pipe may take for ever
        size, most = path.stat().st_size, FILE_BYTES.get(path.name, OTHER_FILE_BYTES)
        if size > most:
            raise TokenizerError(f"{path.name} has {size} bytes; {most} are allowed")
        total += size
    if total > FOLDER_BYTES:
        raise TokenizerError(f"the tokenizer's files have {total} bytes together; {FOLDER_BYTES} are allowed")


def check_vocabulary(tokens: Iterable[tuple[str, int]]) -> None:
    """Raises TokenizerError for a vocabulary that is too large, or has a token that is too long."""
    total = 0
    for text, token in tokens:
        size = len(text.encode())
        total += size
        if size > TOKEN_BYTES:
            raise TokenizerError(f"token {token} of the vocabulary has {size} bytes; {TOKEN_BYTES} are allowed")
        if token >= VOCABULARY_TOKENS:
            raise TokenizerError(f"the vocabulary has a token {token}; {VOCABULARY_TOKENS} tokens are allowed")
    if total > VOCABULARY_BYTES:
        raise TokenizerError(f"the vocabulary has {total} bytes; {VOCABULARY_BYTES} are allowed")


def check_size(tokens: int, known: int) -> None:
    """Raises TokenizerError for a tokenizer of more tokens, added ones left out, than the model knows (0: unknown)."""
    if known and tokens > known:
        raise TokenizerError(
            f"the tokenizer has {tokens} tokens and the model knows {known} (vocab_size of config.json); it is of "
            "another model"
        )


def check_added(tokens: int) -> None:
    """Raises TokenizerError for too many added tokens."""
    if tokens > ADDED_TOKENS:
        raise TokenizerError(f"the tokenizer adds {tokens} tokens to its vocabulary; {ADDED_TOKENS} are allowed")


def check_decoder(decoder: dict[str, Any] | None) -> None:
    """Raises TokenizerError for a decoder whose cost per token has no small bound. `decoder` is tokenizer.json's."""
    if (size := len(json.dumps(decoder))) > _DECODER_BYTES:
        raise TokenizerError(f"the tokenizer's decoder has {size} bytes; {_DECODER_BYTES} are allowed")
    steps = list(_steps(decoder, depth=0)) if decoder else []
    if len(steps) > _DECODER_STEPS:
        raise TokenizerError(f"the tokenizer's decoder has {len(steps)} steps; {_DECODER_STEPS} are allowed")
    growth = 1.0
    for step in steps:
        if step.get("type") not in _DECODERS:
            raise TokenizerError(f"the tokenizer's decoder has a step of type {str(step.get('type'))[:64]!r}")
        growth *= _growth(step)
    if growth > _GROWTH:
        raise TokenizerError(f"the tokenizer's decoder makes texts {growth:g} times longer; {_GROWTH:g} is allowed")


def _steps(decoder: dict[str, Any], depth: int) -> Iterable[dict[str, Any]]:
    if decoder.get("type") != "Sequence":
        yield decoder
    elif depth == 4:
        raise TokenizerError("the tokenizer's decoder is nested too deeply")
    else:
        for step in decoder.get("decoders", []):
            yield from _steps(step, depth + 1)


def _growth(step: dict[str, Any]) -> float:
    """The factor by which a step may lengthen a text at most."""
    kind = step["type"]
    if kind == "Replace":
        pattern = step.get("pattern", {}).get("String")
        if not pattern:
            raise TokenizerError("the tokenizer's decoder replaces a regular expression; only strings are allowed")
        return max(1.0, len(step.get("content", "").encode()) / len(pattern.encode()))
    if kind == "BPEDecoder":
        return 1.0 if step.get("suffix") else 2.0
    if kind == "ByteFallback":
        return 1.0  # six characters become one byte
    return 3.0 if kind == "ByteLevel" else 1.0  # a byte that is no character becomes U+FFFD
