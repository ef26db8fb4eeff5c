"""The text side of models: where their files are, whether their workers could load them, and their vocabularies."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aegaeon_gateway.errors import ApiError, TokenizerError
from aegaeon_gateway.models.remote import Directories
from aegaeon_gateway.models.vocabulary import TokenTable
from aegaeon_gateway.text.detokenize import Vocabulary
from aegaeon_gateway.workers.pool import WorkerPool
from aegaeon_gateway.workers.wire import Loaded
from aegaeon_proto.outbound.client import Outbound
from aegaeon_proto.outbound.policy import Policy
from aegaeon_proto.v1.gateway_pb2 import ModelStatus
from aegaeon_proto.v1.model_pb2 import ModelPhase, ModelSource

log = logging.getLogger(__name__)

_RETRY_S = 10.0
"""a model that failed to load is not tried again sooner: to load costs time, also where it fails"""

Reporter = Callable[[str, str], None]
"""gets a model's name, and why its text cannot be used; an empty reason: it can be"""


@dataclass(frozen=True, slots=True)
class ModelText:
    """What the gateway's loop has of a model: the rest is with the workers, under `key`."""

    key: bytes
    vocabulary: Vocabulary
    max_positions: int


@dataclass(frozen=True, slots=True)
class _Failure:
    """`early`: before any engine had the files, so that it says nothing of them."""

    reason: str
    at: float
    early: bool


class Texts:
    """One ModelText per source. A model that failed to load is tried again at a later request."""

    def __init__(
        self,
        pool: WorkerPool,
        hub_cache: str | None = None,
        fetched: str | None = None,
        outbound: Outbound | None = None,
    ) -> None:
        self._pool = pool
        self.report: Reporter | None = None
        self._directories = Directories(hub_cache, fetched, outbound or Outbound(Policy(())))
        self._loading: dict[bytes, asyncio.Task[ModelText]] = {}
        self._failed: dict[bytes, _Failure] = {}
        self._names: dict[bytes, list[str]] = {}
        self._reported: dict[str, str] = {}  # the reasons by model, as `report` has them
        self._cached: set[bytes] = set()
        self._ahead: dict[bytes, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()

    async def get(self, source: ModelSource) -> ModelText:
        """Raises TokenizerError, UnavailableError."""
        failure = self._failed.get(_key(source))
        if failure is not None and time.monotonic() - failure.at < _RETRY_S:
            raise TokenizerError(failure.reason)
        return await asyncio.shield(self._task(source))

    def forget(self, source: ModelSource) -> None:
        """Its files have gone since they were loaded: the next request fetches and loads them again."""
        if self._loading.pop(key := _key(source), None) is not None:
            self._pool.drop(key)

    def failure(self, source: ModelSource) -> str:
        """Why the text of a source cannot be used; empty when it can, or it was not tried yet."""
        failure = self._failed.get(_key(source))
        return failure.reason if failure else ""

    def max_positions(self, source: ModelSource) -> int:
        """What the files of a source allow, in tokens; 0 while they are not loaded, or where they do not say."""
        task = self._loading.get(_key(source))
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return 0
        return task.result().max_positions

    def failures(self) -> dict[str, str]:
        """The reason by model."""
        reasons = {key: failure.reason for key, failure in self._failed.items() if not failure.early}
        return {name: reasons[key] for key, names in self._names.items() if key in reasons for name in names}

    def keep(self, models: Sequence[ModelStatus]) -> None:
        """Load ahead what the catalog serves and drop what it does not serve any more.

        Once it takes requests: engines have its files, or there is no engine, and then the request that starts one must
        not wait for a tokenizer before.
        """
        self._names = {}
        self._cached = {_key(one.spec.source) for one in models if one.phase == ModelPhase.MODEL_PHASE_CACHED}
        for key in [key for key in self._cached & self._failed.keys() if self._failed[key].early]:
            del self._failed[key]
            if (task := self._loading.get(key)) is not None and task.done():
                del self._loading[key]  # it is tried again below
        for model in models:
            if model.phase != ModelPhase.MODEL_PHASE_FAILED:  # when it is repaired, its texts may differ
                self._names.setdefault(_key(model.spec.source), []).append(model.spec.name)
        for key in (self._loading.keys() | self._failed.keys()) - self._names.keys():
            self._failed.pop(key, None)
            if self._loading.pop(key, None) is not None:
                self._pool.drop(key)
        self._report_news()
        for source in [model.spec.source for model in models if _takes_requests(model)]:
            if (key := _key(source)) not in self._loading.keys() | self._failed.keys() | self._ahead.keys():
                self._ahead[key] = asyncio.create_task(self._preload(key, source))

    async def stop(self) -> None:
        """Wait for nothing more."""
        tasks = [*self._loading.values(), *self._ahead.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _preload(self, key: bytes, source: ModelSource) -> None:
        """Files come side by side: a slow source is waited for by its own models alone. What they hold is loaded one
        model after another, so that a request for another one never waits for more than one."""
        try:
            await self._directories.get(source)
            async with self._turn:
                if key in self._names:
                    await asyncio.wait([self._task(source)])
        except TokenizerError as error:
            self._fail(key, error)
        finally:
            self._ahead.pop(key, None)

    def _fail(self, key: bytes, error: TokenizerError) -> None:
        self._failed[key] = _Failure(str(error), time.monotonic(), early=key not in self._cached)
        self._report_news()

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
            self._fail(key, error)
            raise
        if key not in self._loading:
            self._pool.drop(key)  # the catalog has dropped the model in the meantime, and not taken it up again
        self._failed.pop(key, None)
        self._report_news()
        return text

    def _report_news(self) -> None:
        """By name: one that has another source now, or has left the catalog, is not failed for the former one."""
        before, self._reported = self._reported, self.failures()
        for name in sorted(before.keys() | self._reported.keys()):
            reason = self._reported.get(name, "")
            if reason != before.get(name, ""):
                log.warning("%s: %s", name, reason or "its tokenizer is not known to fail any more")
                if self.report is not None:
                    self.report(name, reason)

    async def _loaded(self, key: bytes, source: ModelSource) -> ModelText:
        directory = await self._directories.get(source)
        try:
            loaded, strings = await self._pool.load(key, str(directory))
        except TokenizerError as error:
            if source.WhichOneof("kind") == "directory":
                raise TokenizerError(f"{directory}: {error}") from error
            said = str(error).replace(str(directory), "its folder")  # the gateway's own is not shown
            raise TokenizerError(f"source.{source.WhichOneof('kind')}: {said}") from error
        vocabulary = await asyncio.to_thread(_vocabulary, loaded, strings)
        return ModelText(key, vocabulary, loaded.max_positions)


def _vocabulary(loaded: Loaded, strings: bytes) -> Vocabulary:
    return Vocabulary(TokenTable(loaded, strings))


def _takes_requests(model: ModelStatus) -> bool:
    return not model.wait and model.phase != ModelPhase.MODEL_PHASE_FAILED


def _key(source: ModelSource) -> bytes:
    return source.SerializeToString(deterministic=True)


def _observe(task: asyncio.Task[ModelText]) -> None:
    """A failure of a preload is reported to the next request, not to the log of lost exceptions."""
    if not task.cancelled() and isinstance(error := task.exception(), ApiError):
        log.warning("a tokenizer was not loaded: %s", error)
