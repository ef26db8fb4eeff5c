"""The text side of models: where their files are, whether their workers could load them, and their vocabularies."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aegaeon_gateway.detokenize import Vocabulary
from aegaeon_gateway.errors import ApiError, TokenizerError
from aegaeon_gateway.remote import fetch
from aegaeon_gateway.vocabulary import TokenTable
from aegaeon_gateway.workers.pool import WorkerPool
from aegaeon_proto.credentials import CredentialsError, token_of
from aegaeon_proto.folders import OutsideError, check_within
from aegaeon_proto.v1.gateway_pb2 import ModelStatus
from aegaeon_proto.v1.model_pb2 import ModelPhase, ModelSource

log = logging.getLogger(__name__)

_TOKENIZER_FILES = ["tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.jinja"]
_CONFIG_FILES = ["config.json", "generation_config.json"]
_RETRY_S = 10.0
"""a model that failed to load is not tried again sooner: to load costs time, also where it fails"""

Reporter = Callable[[str, str], None]
"""is told of a model by name, and why its text cannot be used; an empty reason: it can be"""


@dataclass(frozen=True, slots=True)
class ModelText:
    """What the gateway's loop has of a model: the rest is with the workers, under `key`."""

    key: bytes
    vocabulary: Vocabulary
    max_positions: int


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    at: float


class Texts:
    """One ModelText per source. A model that failed to load is tried again at a later request."""

    def __init__(self, pool: WorkerPool, hub_cache: str | None = None, fetched: str | None = None) -> None:
        self._pool = pool
        self.report: Reporter | None = None
        self._hub_cache = hub_cache
        self._fetched = fetched
        self._loading: dict[bytes, asyncio.Task[ModelText]] = {}
        self._failed: dict[bytes, _Failure] = {}
        self._names: dict[bytes, list[str]] = {}
        self._ahead: dict[bytes, ModelSource] = {}
        self._preloading: asyncio.Task[None] | None = None

    async def get(self, source: ModelSource) -> ModelText:
        """Raises TokenizerError, UnavailableError."""
        failure = self._failed.get(_key(source))
        if failure is not None and time.monotonic() - failure.at < _RETRY_S:
            raise TokenizerError(failure.reason)
        return await asyncio.shield(self._task(source))

    def failure(self, source: ModelSource) -> str:
        """Why the text of a source cannot be used; empty when it can, or nobody has tried."""
        failure = self._failed.get(_key(source))
        return failure.reason if failure else ""

    def failures(self) -> dict[str, str]:
        """The reason by model."""
        return {name: self._failed[key].reason for key, names in self._names.items() if key in self._failed
                for name in names}  # fmt: skip

    def keep(self, models: Sequence[ModelStatus]) -> None:
        """Load ahead what the catalog serves (once its files are there) and drop what it does not serve any more."""
        self._names = {}
        for model in models:
            if model.phase != ModelPhase.MODEL_PHASE_FAILED:  # when it is mended, its texts may be others
                self._names.setdefault(_key(model.spec.source), []).append(model.spec.name)
        for key in (self._loading.keys() | self._failed.keys()) - self._names.keys():
            self._failed.pop(key, None)
            if self._loading.pop(key, None) is not None:
                self._pool.drop(key)
        cached = [model.spec.source for model in models if model.phase == ModelPhase.MODEL_PHASE_CACHED]
        self._ahead = {key: source for source in cached if (key := _key(source)) not in self._loading | self._failed}
        if self._ahead and self._preloading is None:
            self._preloading = asyncio.create_task(self._preload())

    async def stop(self) -> None:
        """Wait for nothing more."""
        tasks = [*self._loading.values(), *([self._preloading] if self._preloading else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _preload(self) -> None:
        """One after another, so that a request for another model never waits for more than one."""
        while self._ahead:
            _, source = self._ahead.popitem()
            await asyncio.wait([self._task(source)])
        self._preloading = None

    def _task(self, source: ModelSource) -> asyncio.Task[ModelText]:
        """The loading of a source, begun unless it is loaded or loading."""
        key = _key(source)
        task = self._loading.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._loading[key] = asyncio.create_task(self._load(key, source))
            task.add_done_callback(_observe)
        return task

    async def _load(self, key: bytes, source: ModelSource) -> ModelText:
        try:
            text = await self._loaded(key, source)
        except TokenizerError as error:
            self._failed[key] = _Failure(str(error), time.monotonic())
            self._tell(key, str(error))
            raise
        if self._loading.get(key) is not asyncio.current_task():
            self._pool.drop(key)  # the catalog has dropped the model in the meantime
        if self._failed.pop(key, None) is not None:
            self._tell(key, "")
        return text

    def _tell(self, key: bytes, reason: str) -> None:
        for name in self._names.get(key, []):
            log.warning("%s: %s", name, reason or "its tokenizer can be loaded again")
            if self.report is not None:
                self.report(name, reason)

    async def _loaded(self, key: bytes, source: ModelSource) -> ModelText:
        try:
            directory = await asyncio.to_thread(_directory, source, self._hub_cache, self._fetched)
        except CredentialsError as error:
            raise TokenizerError(str(error)) from error
        try:
            loaded, strings = await self._pool.load(key, str(directory))
        except TokenizerError as error:
            raise TokenizerError(f"{directory}: {error}") from error
        table = await asyncio.to_thread(TokenTable, loaded, strings)
        vocabulary = Vocabulary(table)  # type: ignore[arg-type]  # it answers all that a Vocabulary asks
        return ModelText(key, vocabulary, loaded.max_positions)


def _key(source: ModelSource) -> bytes:
    return source.SerializeToString(deterministic=True)


def _observe(task: asyncio.Task[ModelText]) -> None:
    """A failure of a preload is told to the next request, not to the log of lost exceptions."""
    if not task.cancelled() and isinstance(error := task.exception(), ApiError):
        log.warning("a tokenizer was not loaded: %s", error)


def _directory(source: ModelSource, hub_cache: str | None, fetched: str | None) -> Path:
    kind = source.WhichOneof("kind")
    if kind == "hub":
        return _from_hub(source, hub_cache)
    if kind in ("s3", "http"):
        if fetched is None:
            raise TokenizerError(f"source.{kind} needs a folder for its tokenizer; set fetched in the configuration")
        return fetch(source, Path(fetched))
    directory = Path(source.directory)
    try:
        check_within(directory, source.root)
    except OutsideError as error:
        raise TokenizerError(str(error)) from error
    except OSError as error:
        raise TokenizerError(f"{directory}: {error.strerror}") from error
    return directory


def _from_hub(source: ModelSource, hub_cache: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        path = snapshot_download(
            source.hub.repository,
            revision=source.hub.revision or None,
            cache_dir=hub_cache,
            token=token_of(source.hub.credentials_file) or None,  # None: the environment's
            allow_patterns=_TOKENIZER_FILES + _CONFIG_FILES,
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise TokenizerError(f"{source.hub.repository}: the tokenizer cannot be fetched: {error}") from error
    return Path(path)
