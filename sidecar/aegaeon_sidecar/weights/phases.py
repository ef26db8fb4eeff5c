"""The state of each model as its owner reads it: whether it can be served, and if not, the reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from aegaeon_native import NativeError
from aegaeon_proto.engine.catalog import (
    DirectorySource,
    HttpSource,
    HubSource,
    ModelPhase,
    ModelState,
    S3Source,
    Source,
)
from aegaeon_proto.redaction import encodable, sentence
from aegaeon_sidecar.domain.errors import (
    ConfigMissingError,
    ModelError,
    OtherWeightsError,
    SidecarError,
    SourceError,
    TooLargeError,
    UnreadableError,
    UnsupportedError,
    WeightsError,
)
from aegaeon_sidecar.weights.models import Adapter, Model
from aegaeon_sidecar.weights.table import ModelTable

log = logging.getLogger(__name__)

_MOST_MISSES = 4  # after as many the scheduler gives it up here: SchedulerConfig.max_failures + 1
_CHANGED = "weights changed while served: "
_MEND = "; it is loaded again by itself when that is fixed"
_PUT_BACK = "; put the former files back and it is loaded again by itself, or apply it again to serve these"


class Phases:
    """Sets phases and reasons and has them reported, from any thread. `hidden`: folders of this machine that are no
    business of those who read reasons, each with what it is called instead."""

    def __init__(self, table: ModelTable, report: Callable[[ModelState], None], hidden: Mapping[Path, str]) -> None:
        self._table = table
        self._report = report
        self._hidden = {str(folder): hidden[folder] for folder in sorted(hidden, key=lambda folder: -len(str(folder)))}

    def tell(self, model: Model | Adapter) -> None:
        """Report it as it is. Under the lock: else what follows it under its name might be reported before it."""
        with self._table.monitor.changed:
            if not model.forgotten:
                self._report(model.state())

    def cached(self, model: Model, note: str) -> None:
        """Mark the model as servable; `note`: a remark for its owner."""
        with self._table.monitor.changed:
            model.phase, model.reason, model.transient = ModelPhase.CACHED, self._public(model, note), False
            if model.layout is not None:
                model.pace.note(model.layout.weight_bytes, model.layout.weight_bytes)
        self.tell(model)

    def absent(self, model: Model, why: str) -> None:
        """Report a model that is not on this node, and is fetched when requests wait for it."""
        with self._table.monitor.changed:
            model.phase, model.absent, model.on_demand, model.trying = ModelPhase.FETCHING, True, False, False
            model.reason = f"it is fetched when a request waits for it: {self._public(model, why)}"
        self.tell(model)

    def failed(self, model: Model | Adapter, error: Exception) -> None:
        """Report a model that cannot be served. The scheduler then refuses its waiting requests at once."""
        log.warning("model %s cannot be served: %s", model.name, _said(error))
        reason = self._reason(model, error)
        with self._table.monitor.changed:
            model.phase, model.reason, model.trying = ModelPhase.FAILED, reason, False
            model.permanent = isinstance(error, UnsupportedError | TooLargeError)
            model.transient = not isinstance(error, ModelError) or isinstance(error, UnreadableError)
            model.unsupported = model.served is None and _unsupported(error)
            model.retry_after_s = error.retry_after_s if isinstance(error, SourceError) else 0.0
        self.tell(model)

    def not_loaded(self, model: Model, error: Exception) -> None:
        """One more load of it did not succeed, of whatever: too many in a row, and it is failed.

        The scheduler gives it up here after as many, but would not report it, nor ever try again.
        """
        with self._table.monitor.changed:
            model.misses += 1
            enough = model.misses >= _MOST_MISSES and model.phase == ModelPhase.CACHED
        if enough:
            self.failed(model, error)

    def _reason(self, model: Model | Adapter, error: Exception) -> str:
        text = self._public(model, _said(error))
        if model.served is None or not isinstance(error, ModelError):
            return f"{model.name}: {text}"
        before = "" if isinstance(error, UnreadableError) else _CHANGED
        return f"{model.name}: {before}{text}{_PUT_BACK if isinstance(error, OtherWeightsError) else _MEND}"

    def _public(self, model: Model | Adapter, text: str) -> str:
        """The message with names of files, and the source as in the catalog, instead of paths of this machine."""
        if model.located is not None:
            directory = str(model.located.directory)
            text = text.replace(f"{directory}/", "").replace(directory, source_name(model.spec.source))
        for folder, name in self._hidden.items():
            text = text.replace(folder, name)
        return text


def _unsupported(error: Exception) -> bool:
    """True when this engine cannot run such a model at all; false when its files are damaged or out of reach."""
    return isinstance(error, ModelError) and not isinstance(error, WeightsError | ConfigMissingError)


def _said(error: Exception) -> str:
    return encodable(str(error)) if isinstance(error, SidecarError | NativeError) else sentence(error)


def source_name(source: Source) -> str:
    """Return the source as its owner wrote it."""
    match source:
        case HubSource(repository):
            return repository
        case S3Source(bucket, prefix):
            return f"s3://{bucket}/{prefix}"
        case HttpSource(url):
            return url
        case DirectorySource(directory):
            return directory
