"""Texts of models by the content of their files: a thousand models have a few tokenizers, and each is loaded once.

Files are read once, into a folder of the gateway's own, and loaded from there: what models share is what was hashed,
and stays so. What was used longest ago is dropped where all together take more memory than they may.
"""

from __future__ import annotations

import asyncio
import shutil
import weakref
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from aegaeon_gateway.errors import TokenizerError
from aegaeon_gateway.models.vocabulary import TokenTable
from aegaeon_gateway.text.detokenize import Vocabulary
from aegaeon_gateway.workers.files import digest, read_texts
from aegaeon_gateway.workers.pool import WorkerPool
from aegaeon_gateway.workers.wire import Loaded

_SMALLEST_BYTES = 1 << 20
"""that a text counts for at least, whose tokenizer others have as well: templates, settings, the rounding of pages"""
_READ_AT_A_TIME = 2  # folders; each may have 128 MiB


@dataclass(frozen=True, slots=True)
class ModelText:
    """The part of a model's text that is on the gateway's loop: the rest is with the workers, under `key`."""

    key: bytes
    vocabulary: Vocabulary
    max_positions: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """`tokenizer`: a hash of its tokenizer's files, which other texts may have as well; `nbytes`: what loading took."""

    text: ModelText
    tokenizer: bytes
    nbytes: int


class Contents:
    """Texts that are loaded, those used longest ago first. `most_bytes`: that all may take, but for those in use."""

    def __init__(self, pool: WorkerPool, most_bytes: int) -> None:
        self._pool = pool
        self._most_bytes = most_bytes
        self._folder: Path | None = None
        self._reading = asyncio.Semaphore(_READ_AT_A_TIME)
        self._kept: dict[bytes, _Kept] = {}
        self._loading: dict[bytes, asyncio.Task[ModelText]] = {}
        self._uses: Counter[bytes] = Counter()
        self._awaited: Counter[bytes] = Counter()

    async def load(self, directory: Path) -> ModelText:
        """The text of the model in a folder of this machine. Raises TokenizerError, UnavailableError."""
        async with self._reading:
            files = await asyncio.to_thread(read_texts, directory)
            key = await asyncio.to_thread(digest, files)
            if (text := self.find(key)) is not None:
                return text
            if key not in self._loading:
                copy = self._place(key)
                task = self._loading[key] = asyncio.create_task(self._load(key, copy, files))
                task.add_done_callback(lambda _: self._loading.pop(key, None))
        del files
        try:
            with _counted(self._awaited, key):
                return await asyncio.shield(self._loading[key])
        except TokenizerError as error:
            raise TokenizerError(str(error).replace(str(self._place(key)), str(directory))) from error

    def find(self, key: bytes) -> ModelText | None:
        """A text that is loaded, which counts as a use; None: it is not, or not any more."""
        if (kept := self._kept.pop(key, None)) is None:
            return None
        self._kept[key] = kept
        return kept.text

    def used(self, key: bytes) -> AbstractContextManager[None]:
        """While workers work with a text it is not dropped for others."""
        return _counted(self._uses, key)

    def drop(self, key: bytes) -> None:
        """Forget a model, which is loaded again when it is needed."""
        if self._kept.pop(key, None) is not None:
            self._pool.drop(key)
            shutil.rmtree(self._place(key), ignore_errors=True)

    def keep_only(self, keys: Container[bytes]) -> None:
        """No model of the catalog has the others. A text whose `load` has not returned is unknown to the caller and
        stays."""
        for key in [key for key in self._kept if key not in keys and not self._awaited[key]]:
            self.drop(key)

    async def stop(self) -> None:
        """Wait for nothing more."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def nbytes(self) -> int:
        """The memory of all: a tokenizer that several models have counts once."""
        tokenizers: dict[bytes, int] = {}
        for kept in self._kept.values():
            tokenizers[kept.tokenizer] = max(kept.nbytes, tokenizers.get(kept.tokenizer, 0))
        return sum(tokenizers.values()) + _SMALLEST_BYTES * len(self._kept)

    async def _load(self, key: bytes, copy: Path, files: Mapping[str, bytes]) -> ModelText:
        await asyncio.to_thread(_write, copy, files)
        try:
            loaded, strings = await self._pool.load(key, str(copy))
        except BaseException:
            shutil.rmtree(copy, ignore_errors=True)
            raise
        same = [kept.text.vocabulary for kept in self._kept.values() if kept.tokenizer == loaded.tokenizer]
        vocabulary = same[0] if same else await asyncio.to_thread(_vocabulary, loaded, strings)
        text = ModelText(key, vocabulary, loaded.max_positions)
        self._kept[key] = _Kept(text, loaded.tokenizer, loaded.resident_bytes)
        self._make_room(key)
        return text

    def _make_room(self, newest: bytes) -> None:
        for key in list(self._kept):
            if self.nbytes <= self._most_bytes:
                return
            if key != newest and not self._uses[key] and not self._awaited[key]:
                self.drop(key)

    def _place(self, key: bytes) -> Path:
        """Where its files are kept, which the fork server reads again when it was ended."""
        if self._folder is None:
            self._folder = Path(mkdtemp(prefix="aegaeon-texts-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder / key.hex()[:32]


@contextmanager
def _counted(counter: Counter[bytes], key: bytes) -> Iterator[None]:
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Raises TokenizerError."""
    try:
        folder.mkdir(exist_ok=True)
        for name, data in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise TokenizerError(f"its small files cannot be kept: {error.strerror}; check the temporary folder") from error


def _vocabulary(loaded: Loaded, strings: bytes) -> Vocabulary:
    return Vocabulary(TokenTable(loaded, strings))
