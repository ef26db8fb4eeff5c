"""The text side of models: where their files are, whether their workers could load them, and their vocabularies.

Nothing is fetched or loaded before a request asks for it: of a thousand models few are in use.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from aegaeon_gateway.config import MOST_TOKENIZER_BYTES
from aegaeon_gateway.errors import ApiError, TokenizerError
from aegaeon_gateway.models.contents import Contents, ModelText
from aegaeon_gateway.models.remote import Directories
from aegaeon_gateway.workers.pool import WorkerPool
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
class _Failure:
    """`early`: before any engine had the files, so that it says nothing of them."""

    reason: str
    at: float
    early: bool


class Texts:
    """One ModelText per source, which sources of equal content share. A model that failed to load is tried again at a
    later request."""

    def __init__(
        self,
        pool: WorkerPool,
        hub_cache: str | None = None,
        fetched: str | None = None,
        outbound: Outbound | None = None,
        most_bytes: int = MOST_TOKENIZER_BYTES,
    ) -> None:
        self.report: Reporter | None = None
        self._directories = Directories(hub_cache, fetched, outbound or Outbound(Policy(())))
        self._contents = Contents(pool, most_bytes)
        self._loading: dict[bytes, asyncio.Task[ModelText]] = {}
        self._failed: dict[bytes, _Failure] = {}
        self._names: dict[bytes, list[str]] = {}
        self._reported: dict[str, str] = {}  # the reasons by model, as `report` has them
        self._cached: set[bytes] = set()

    async def get(self, source: ModelSource) -> ModelText:
        """Raises TokenizerError, UnavailableError."""
        key = _key(source)
        failure = self._failed.get(key)
        if failure is not None and time.monotonic() - failure.at < _RETRY_S:
            raise TokenizerError(failure.reason)
        if (text := self._loaded(key)) is not None and self._contents.find(text.key) is None:
            del self._loading[key]  # it has made room for others
        return await asyncio.shield(self._task(source))

    def used(self, text: ModelText) -> AbstractContextManager[None]:
        """While workers have a job with it."""
        return self._contents.used(text.key)

    def forget(self, source: ModelSource) -> None:
        """Its files have gone since they were loaded: the next request fetches and loads them again."""
        if (text := self._loaded(_key(source))) is not None:
            self._contents.drop(text.key)
        self._loading.pop(_key(source), None)

    def failure(self, source: ModelSource) -> str:
        """Why the text of a source cannot be used; empty when it can, or it was not tried yet."""
        failure = self._failed.get(_key(source))
        return failure.reason if failure else ""

    def max_positions(self, source: ModelSource) -> int:
        """The length that the files of a source allow, in tokens; 0 while they are not loaded, or where they name
        none."""
        text = self._loaded(_key(source))
        return text.max_positions if text else 0

    def failures(self) -> dict[str, str]:
        """The reason by model."""
        reasons = {key: failure.reason for key, failure in self._failed.items() if not failure.early}
        return {name: reasons[key] for key, names in self._names.items() if key in reasons for name in names}

    def keep(self, models: Sequence[ModelStatus]) -> None:
        """Drop what the catalog does not serve any more."""
        self._names = {}
        self._cached = {_key(model.spec.source) for model in models if model.phase == ModelPhase.MODEL_PHASE_CACHED}
        for key in [key for key in self._cached & self._failed.keys() if self._failed[key].early]:
            del self._failed[key]  # the next request tries it at once
        for model in models:
            if model.phase != ModelPhase.MODEL_PHASE_FAILED:  # when it is repaired, its texts may differ
                self._names.setdefault(_key(model.spec.source), []).append(model.spec.name)
        for key in (self._loading.keys() | self._failed.keys()) - self._names.keys():
            self._failed.pop(key, None)
            self._loading.pop(key, None)
        texts = (self._loaded(key) for key in self._loading)
        self._contents.keep_only({text.key for text in texts if text is not None})
        self._report_news()

    async def stop(self) -> None:
        """Wait for nothing more."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._contents.stop()

    def _loaded(self, key: bytes) -> ModelText | None:
        """The text of a source, if its loading is over and ended well."""
        task = self._loading.get(key)
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    def _task(self, source: ModelSource) -> asyncio.Task[ModelText]:
        """The loading of a source, begun unless it is loaded or loading."""
        key = _key(source)
        task = self._loading.get(key)
        if task is None or (task.done() and self._loaded(key) is None):
            task = self._loading[key] = asyncio.create_task(self._load(key, source))
            task.add_done_callback(_observe)
        return task

    async def _load(self, key: bytes, source: ModelSource) -> ModelText:
        try:
            text = await self._bring(source)
        except TokenizerError as error:
            self._failed[key] = _Failure(str(error), time.monotonic(), early=key not in self._cached)
            self._report_news()
            raise
        self._failed.pop(key, None)
        self._report_news()
        return text

    def _report_news(self) -> None:
        """Report failures by name: a model that has another source now, or has left the catalog, is not failed for the
        former."""
        before, self._reported = self._reported, self.failures()
        for name in sorted(before.keys() | self._reported.keys()):
            reason = self._reported.get(name, "")
            if reason != before.get(name, ""):
                log.warning("%s: %s", name, reason or "its tokenizer is not known to fail any more")
                if self.report is not None:
                    self.report(name, reason)

    async def _bring(self, source: ModelSource) -> ModelText:
        directory = await self._directories.get(source)
        try:
            return await self._contents.load(directory)
        except TokenizerError as error:
            if source.WhichOneof("kind") == "directory":
                raise TokenizerError(f"{directory}: {error}") from error
            message = str(error).replace(str(directory), "its folder")  # the gateway's own is not shown
            raise TokenizerError(f"source.{source.WhichOneof('kind')}: {message}") from error


def _key(source: ModelSource) -> bytes:
    return source.SerializeToString(deterministic=True)


def _observe(task: asyncio.Task[ModelText]) -> None:
    """A failure is reported to the next request as well, not to the log of lost exceptions."""
    if not task.cancelled() and isinstance(error := task.exception(), ApiError):
        log.warning("a tokenizer was not loaded: %s", error)
