"""Models and rates from a small file: YAML (`models:` with a list) or CSV with a header, the same fields in both.

Fields: `kind` and `rate` (requests per second, of each); optional `model` (name), `tenant`, `count` (copies of it),
`input_len`, `output_len` (mean tokens), `ttft` and `tbt` (seconds: its own objective). Errors name the line.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterator
from pathlib import Path

import yaml

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.plan.demand import ModelDemand
from aegaeon_simulator.plan.errors import FileError
from aegaeon_simulator.workload.kinds import canonical

FIELDS = ("model", "kind", "rate", "tenant", "count", "input_len", "output_len", "ttft", "tbt")
MOST_MODELS = 10_000
Entry = tuple[int, dict[str, str]]


def read_models(path: Path, known: Collection[str]) -> list[ModelDemand]:
    """All models of the file; `known` are the device's kinds. Raises FileError with file, line and remedy."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(path, None, f"cannot be read ({error})") from error
    entries = _yaml(path, text) if path.suffix in (".yaml", ".yml") else _csv(path, text)
    models: list[ModelDemand] = []
    seen: set[str] = set()
    for line, entry in entries:
        for model in _models(path, line, entry, known):
            if model.name in seen:
                raise FileError(path, line, f"model {model.name} appears twice; rename one of them")
            seen.add(model.name)
            models.append(model)
    if not models:
        raise FileError(path, None, "contains no model; add one with its kind and rate")
    return models


def _models(path: Path, line: int, entry: dict[str, str], known: Collection[str]) -> Iterator[ModelDemand]:
    unknown = [field for field in entry if field not in FIELDS]
    if unknown:
        raise FileError(path, line, f"unknown field {unknown[0]!r}; known are {', '.join(FIELDS)}")
    kind = _kind(path, line, entry.get("kind", ""), known)
    count = _number(path, line, entry, "count", 1.0)
    if count != int(count) or count > MOST_MODELS:
        raise FileError(path, line, f"count is {entry['count']!r}; it must be a whole number of models")
    name = entry.get("model") or f"line{line}-{kind}"
    input_tokens, output_tokens = (
        _number(path, line, entry, f, 0.0) if entry.get(f) else None for f in ("input_len", "output_len")
    )
    rate, slo = _number(path, line, entry, "rate", None), _slo(path, line, entry)
    for i in range(int(count)):
        each = name if count == 1 else f"{name}-{i + 1}"
        yield ModelDemand(each, kind, rate, entry.get("tenant", ""), input_tokens, output_tokens, slo)


def _slo(path: Path, line: int, entry: dict[str, str]) -> Slo | None:
    """The objective; both fields are needed, or neither."""
    if bool(entry.get("ttft")) != bool(entry.get("tbt")):
        raise FileError(path, line, "has only one of ttft and tbt; add the other, in seconds, or remove both")
    if not entry.get("ttft"):
        return None
    return Slo(_number(path, line, entry, "ttft", None), _number(path, line, entry, "tbt", None))


def _kind(path: Path, line: int, name: str, known: Collection[str]) -> str:
    kind = name if name in known else canonical(name)
    if kind is None or kind not in known:
        problem = f"unknown kind {name!r}" if name else "has no kind"
        raise FileError(path, line, f"{problem}; the device knows {', '.join(sorted(known))}")
    return kind


def _number(path: Path, line: int, entry: dict[str, str], field: str, missing: float | None) -> float:
    text = entry.get(field)
    if not text and missing is not None:
        return missing
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise FileError(path, line, f"{field} is {text!r}; it must be a number greater than 0")
    return value


def _csv(path: Path, text: str) -> Iterator[Entry]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    missing = [f for f in ("kind", "rate") if f not in (reader.fieldnames or [])]
    if missing:
        raise FileError(path, 1, f"lacks the column {missing[0]}; known columns are {', '.join(FIELDS)}")
    for row in reader:
        if None in row:
            raise FileError(path, reader.line_num, "has more fields than the header; check its commas")
        yield reader.line_num, {field: (value or "").strip() for field, value in row.items()}


def _yaml(path: Path, text: str) -> Iterator[Entry]:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise FileError(path, line, f"not YAML: {error.problem or error.context}") from error
    listed = _value(root, "models")
    if not isinstance(listed, yaml.SequenceNode):
        raise FileError(path, 1, "needs a list under `models:`; each entry has kind and rate")
    for node in listed.value:
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.MappingNode):
            raise FileError(path, line, "is not a mapping; write for example {kind: 7b, rate: 0.1}")
        yield line, {str(key.value): _scalar(path, value) for key, value in node.value}


def _value(node: yaml.Node | None, name: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for key, value in node.value if key.value == name), None)


def _scalar(path: Path, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise FileError(path, node.start_mark.line + 1, "must be a plain value, not a list or mapping")
    return str(node.value)
