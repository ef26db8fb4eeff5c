"""The task of a model according to its files, read alike by gateways, which route requests, and sidecars, which
compute.

Decoders are served: their last hidden state of a prompt gives an embedding, or a score. A model pools if it has a
modules.json, as sentence-transformers writes it, or a classifier's architecture, or if its manifest sets the task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
"""where sentence-transformers keeps how a model pools; `path` in modules.json may name another folder"""
CONFIG = "config.json"
FILES = (CONFIG, MODULES, POOLING)
MOST_BYTES = 4 << 20
"""of each"""
_CLASSIFIER = "ForSequenceClassification"
_LAST_TOKEN = "lasttoken"
_MODULES = ("Transformer", "Pooling", "Normalize")
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": _LAST_TOKEN,
}

Document = Mapping[str, Any]


class PoolingError(ValueError):
    """The files describe a model that is not served, or contradict themselves; the message gives the file and the
    reason."""


class Task(Enum):
    """The task of a model."""

    GENERATE = "generate"
    EMBED = "embed"
    SCORE = "score"


@dataclass(frozen=True, slots=True)
class Purpose:
    """The task of a model and its options. `normalize`: its embeddings have length 1; `matryoshka`: they may be cut to
    their first dimensions, to any number of them (True) or to one of these; `classifies`: a head of its own gives the
    score."""

    task: Task
    normalize: bool = True
    matryoshka: bool | tuple[int, ...] = False
    classifies: bool = False

    @property
    def pools(self) -> bool:
        return self.task is not Task.GENERATE


def purpose_of(documents: Mapping[str, object], task: str = "") -> Purpose:
    """The purpose shown by `documents`, the existing parsed FILES by name; `task`: that of a manifest, "": not set.

    Raises PoolingError.
    """
    config = _table(documents.get(CONFIG))
    classifies = any(str(name).endswith(_CLASSIFIER) for name in _entries(config.get("architectures")))
    modules = [str(_table(module).get("type", "")) for module in _entries(documents.get(MODULES))]
    pooled = any(kind.endswith(".Pooling") for kind in modules)
    chosen = _named(task) if task else _shown(classifies=classifies, pooled=pooled)
    if classifies:
        _check_classifier(config, chosen)
    if chosen is Task.GENERATE:
        return Purpose(chosen)
    if pooled:
        _check_modules(modules)
        _check_mode(documents.get(POOLING))
    normalize = not pooled or any(kind.endswith(".Normalize") for kind in modules)
    return Purpose(chosen, normalize, _matryoshka(config), classifies)


def read_purpose(directory: Path, task: str = "") -> Purpose:
    """Read the purpose of a model from its folder. Raises PoolingError."""
    return purpose_of(read_documents(directory), task)


def read_documents(directory: Path) -> dict[str, object]:
    """Parse the existing ones of FILES. Raises PoolingError for a file that is not JSON, or too large."""
    documents: dict[str, object] = {}
    for name in FILES:
        path = directory / name
        if path.is_file():
            documents[name] = _parsed(path, name)
    return documents


def _parsed(path: Path, name: str) -> object:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise PoolingError(f"{name}: has more than {MOST_BYTES} bytes")
        parsed: object = json.loads(data)
    except OSError as error:
        raise PoolingError(f"{name}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, PoolingError):
            raise
        raise PoolingError(f"{name}: not JSON: {error}") from error
    return parsed


def _named(task: str) -> Task:
    try:
        return Task(task)
    except ValueError:
        raise PoolingError(f"task: {task!r:.40} is not one of {', '.join(kind.value for kind in Task)}") from None


def _shown(*, classifies: bool, pooled: bool) -> Task:
    if classifies:
        return Task.SCORE
    return Task.EMBED if pooled else Task.GENERATE


def _check_classifier(config: Document, chosen: Task) -> None:
    if chosen is not Task.SCORE:
        raise PoolingError(f"{CONFIG}: a classifier can only score; remove task {chosen.value}")
    labels = config.get("num_labels", len(_table(config.get("id2label"))) or 2)  # transformers' default is two
    if labels != 1:
        raise PoolingError(
            f"{CONFIG}: has {labels!r:.20} labels; only classifiers with one label (rerankers) are served"
        )


def _check_modules(modules: list[str]) -> None:
    for kind in modules:
        if kind.rpartition(".")[2] not in _MODULES:
            raise PoolingError(f"{MODULES}: {kind:.80} is not supported; supported are {', '.join(_MODULES)}")


def _check_mode(document: object) -> None:
    """Check how the model pools; without that file it pools as decoders do."""
    config = _table(document)
    modes = [mode for name, mode in _MODES.items() if config.get(name) is True]
    modes += [str(config["pooling_mode"])] if isinstance(config.get("pooling_mode"), str) else []
    if modes and modes != [_LAST_TOKEN]:
        raise PoolingError(f"{POOLING}: pools by {', '.join(modes)}; only pooling by {_LAST_TOKEN} is supported")


def _matryoshka(config: Document) -> bool | tuple[int, ...]:
    dimensions = config.get("matryoshka_dimensions")
    if isinstance(dimensions, list) and dimensions and all(type(size) is int and size > 0 for size in dimensions):
        return tuple(sorted(dimensions))
    return config.get("is_matryoshka") is True


def _table(value: object) -> Document:
    return value if isinstance(value, dict) else {}


def _entries(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
