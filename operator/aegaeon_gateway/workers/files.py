"""A model's text files: read once, hashed as a whole, and a hash of those that make its tokenizer what it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path

import orjson

from aegaeon_gateway.errors import TokenizerError
from aegaeon_gateway.workers.bounds import FILE_BYTES, OTHER_FILE_BYTES, TEXT_FILES, check_files
from aegaeon_proto.pooling import MODULES, MOST_BYTES, POOLING

_SETTINGS = {*FILE_BYTES, MODULES, POOLING}
_RARE_FILES = ("*.model", "*.tiktoken", "*.vocab")
_OF_TOKENIZER = ("model_type", "tokenizer_class", "auto_map")
"""what config.json says of it"""


def read_texts(directory: Path) -> dict[str, bytes]:
    """Everything that a model's text is made of, by name. Raises TokenizerError, also for files that are too large."""
    if not directory.is_dir():
        raise TokenizerError("no such folder")
    try:
        check_files(directory)
        for name in (MODULES, POOLING):
            if (path := directory / name).is_file() and path.stat().st_size > MOST_BYTES:
                raise TokenizerError(f"{name} has more than {MOST_BYTES} bytes")
        paths = {name: directory / name for name in sorted(_SETTINGS | _names(directory) | _others(directory))}
        return {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    except OSError as error:
        raise TokenizerError(f"its files cannot be read: {error.strerror}") from error


def digest(files: Mapping[str, bytes]) -> bytes:
    """The hash of names and bytes."""
    return _hash(files.items()).digest()


def tokenizer_of(directory: Path) -> bytes:
    """The hash of the files that a folder's tokenizer and chat template are made of: other models may have the same."""
    names = sorted({"tokenizer_config.json", *_names(directory), *_others(directory)})
    hashed = _hash((name, (directory / name).read_bytes()) for name in names if (directory / name).is_file())
    config = directory / "config.json"
    try:
        settings = orjson.loads(config.read_bytes()) if config.is_file() else {}
    except ValueError:
        settings = None  # what loads it says so
    if isinstance(settings, dict):
        hashed.update(orjson.dumps([settings.get(name) for name in _OF_TOKENIZER]))
    return hashed.digest()


def _names(directory: Path) -> set[str]:
    return {path.name for name in TEXT_FILES for path in directory.glob(name)}


def _others(directory: Path) -> set[str]:
    """Files that some classes of tokenizers need beside these, unless they are too large for that."""
    paths = (path for name in _RARE_FILES for path in directory.glob(name))
    return {path.name for path in paths if path.stat().st_size <= OTHER_FILE_BYTES}


def _hash(files: Iterable[tuple[str, bytes]]) -> blake2b:
    hashed = blake2b(digest_size=32)
    for name, data in files:
        hashed.update(f"{name} {len(data)}\n".encode())
        hashed.update(data)
    return hashed
