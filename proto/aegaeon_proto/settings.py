"""Settings files of processes: JSON, checked by pydantic; an error names the file, the key and the fault."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

_T = TypeVar("_T")
_NONE: Mapping[str, Any] = MappingProxyType({})


def read_settings(
    file: Path, form: type[_T], fault: type[Exception], overrides: Mapping[str, Any] = _NONE, *, strict: bool = False
) -> _T:
    """Read FILE, with `overrides` in place of its values, as a `form`: a pydantic model or a dataclass.

    Unknown keys are errors. `strict`: text is no number, and true and false are none. Raises `fault`.
    """
    try:
        text = file.read_bytes()
        document = to_json({**from_json(text), **overrides}) if overrides else text
        return TypeAdapter(form).validate_json(document, strict=strict, extra="forbid")
    except OSError as error:
        raise fault(f"{file}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise fault(f"{file}: {complaints(error)}") from error
    except (ValueError, TypeError) as error:
        raise fault(f"{file}: is not a JSON object: {error}") from error


def complaints(error: ValidationError) -> str:
    """The faults in a line: `memory.slab_bytes: Input should be greater than 0; colour: unknown key ...`."""
    return "; ".join(map(_complaint, error.errors(include_url=False)))


def _complaint(detail: ErrorDetails) -> str:
    key = ".".join(map(str, detail["loc"])) or "the file"
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{key}: unknown key; remove it or correct its name"
    return f"{key}: {detail['msg'].removeprefix('Value error, ')}"
