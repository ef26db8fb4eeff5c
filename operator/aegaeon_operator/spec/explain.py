"""Convert pydantic's errors to sentences that name the field as written and the allowed values."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from aegaeon_operator.spec.base import DNS_LABEL, DNS_SUBDOMAIN, SECRET_KEY, SERVED_NAME
from aegaeon_operator.spec.egress import DIRECT_PATTERN, PROXY_PATTERN
from aegaeon_operator.spec.kubernetes import AMOUNT, LABEL_VALUE, QUALIFIED
from aegaeon_operator.spec.pods import reserved
from aegaeon_operator.spec.pods.containers import VARIABLE
from aegaeon_operator.spec.quantity import DURATION, QUANTITY
from aegaeon_proto.outbound.policy import ENTRY_PATTERN
from aegaeon_proto.outbound.urls import OPTIONAL_SOURCE_PATTERN, SOURCE_PATTERN
from aegaeon_proto.redaction import redact

_LABEL = "lower-case letters, digits and '-', beginning and ending with a letter or digit"
_PATH = "an absolute path"
_URL = "an http:// or https:// address in ASCII, without user and query"
# A description of the allowed values for every pattern of a spec.
ALLOWED = {
    r"^/": _PATH,
    r"^(/.*)?$": _PATH,
    r"^/[^:\x00-\x1f\x7f]*$": "an absolute path without ':' and control characters",
    r"^/[-A-Za-z0-9._~/]*[-A-Za-z0-9._~]$": "an absolute path of letters, digits and '-._~', without '/' at its end",
    SOURCE_PATTERN: _URL,
    OPTIONAL_SOURCE_PATTERN: _URL,
    ENTRY_PATTERN: "a host such as *.example.com, or a network such as 10.0.0.0/8",
    PROXY_PATTERN: "http://HOST:PORT of a proxy, without user and path",
    DIRECT_PATTERN: "a host such as example.com, an address or a network such as 10.0.0.0/8, or *",
    r"^[0-9a-fA-F.:]+/[0-9]{1,3}$": "a network such as 10.0.0.0/8 or fd00::/8",
    r"^(cpu|cuda:[0-9]+)$": "cpu or cuda:N",
    DNS_LABEL: _LABEL,
    DNS_SUBDOMAIN: f"{_LABEL}; dots between such parts",
    r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$": f"* or {_LABEL}",
    r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$": "a host such as models.example.com "
    "or *.example.com, in lower case",
    SERVED_NAME: "letters, digits, '.', '_', '/', ':', '@' and '-', beginning and ending with a letter or digit",
    SECRET_KEY: "letters, digits, '.', '_' and '-'",
    VARIABLE: "letters, digits, '_', '-' and '.', without a digit first",
    LABEL_VALUE: "the value of a label: at most 63 letters, digits, '.', '_' and '-'",
    QUALIFIED: "a name such as nvidia.com/gpu",
    r"^[A-Za-z0-9][-A-Za-z0-9._:/@]*$": "an image such as registry.example/name:tag or name@sha256:...",
    r"^[!-~]+$": "ASCII without spaces",
    r"^[!-~]*$": "ASCII without spaces",
    r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$": "the name of an HTTP header",
    r"^(\*|https?://[A-Za-z0-9.\-]+(:[0-9]{1,5})?)$": "* or an origin such as https://chat.example.com",
    r"^https?://[A-Za-z0-9.\-\[\]:]+/?$": "an address such as http://collector.observability:4317",
    AMOUNT: "an amount such as 2, 500m or 4Gi",
    QUANTITY: "a quantity of bytes such as 4096, 512Mi or 2G",
    DURATION: "a duration such as 100ms, 10s or 1m30s",
}
_EXPECTED = {
    "string_type": "text (quote it)",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def explain(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Return one sentence for each error: `spec.memory.slabSize: ...`."""
    details = error.errors(include_url=False)
    return [
        f"{field_path(detail['loc'])}: {_sentence(detail, model)}"
        for detail in details
        if not (detail["type"] == "too_short" and _is_explained_inside(detail, details))
    ]


def _is_explained_inside(detail: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """Return whether a list is too short only because its invalid items do not count."""
    at = detail["loc"]
    return any(other["loc"][: len(at)] == at and len(other["loc"]) > len(at) for other in details)


def field_path(location: tuple[int | str, ...]) -> str:
    """Return the path as written: ('spec', 'models', 0, 'name') -> `spec.models[0].name`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "document"


def _sentence(detail: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    sentence = detail["msg"][0].lower() + detail["msg"][1:]
    match kind:
        case "missing":
            sentence = "is required"
        case "extra_forbidden":
            sentence = f"{_unknown(detail['loc'])}; allowed here: {', '.join(_fields_at(model, detail['loc'][:-1]))}"
        case "literal_error":
            sentence = f"{value!r} is not known; allowed: {context['expected']}"
        case "value_error":
            sentence = str(context["error"])
        case "string_pattern_mismatch":
            shown = redact(value) if "://" in value else value  # a URL may hold a password
            sentence = f"{shown!r} is not allowed; allowed: {ALLOWED.get(context['pattern'], context['pattern'])}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            sentence = f"{value!r} is out of range; allowed: {_bound(kind, context)}"
        case _ if kind in _EXPECTED:
            sentence = f"{_shown(value)} is not allowed; expected {_EXPECTED[kind]}"
    return sentence


def _unknown(location: tuple[int | str, ...]) -> str:
    """Return the problem of a field that no type has; fields of pods that the operator sets are known."""
    of_pods = {"podTemplate", "controlPodTemplate"}.intersection(location)
    return "is set by the operator" if of_pods and location[-1] in reserved.FIELDS else "unknown field"


def _bound(kind: str, context: dict[str, Any]) -> str:
    word = {
        "greater_than": ("more than", "gt"),
        "greater_than_equal": ("at least", "ge"),
        "less_than": ("less than", "lt"),
        "less_than_equal": ("at most", "le"),
    }[kind]
    return f"{word[0]} {context[word[1]]:g}"


def _shown(value: object) -> str:
    if value is None:
        return "an empty value"
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the field names, as written, of the type at `location` below `model`."""
    for part in location:
        if isinstance(part, int):
            continue
        field = next(f for name, f in model.model_fields.items() if (f.alias or name) == part)
        model = next(t for t in _leaves(field.annotation) if isinstance(t, type) and issubclass(t, BaseModel))
    return [field.alias or name for name, field in model.model_fields.items()]


def _leaves(annotation: object) -> list[object]:
    """Return the types in an annotation: `tuple[A, ...] | None` -> [A, ..., None]."""
    if get_origin(annotation) in (Union, types.UnionType, tuple) or hasattr(annotation, "__metadata__"):
        return [leaf for argument in get_args(annotation) for leaf in _leaves(argument)]
    return [annotation]
