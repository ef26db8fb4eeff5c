"""The CustomResourceDefinitions, generated from the types: `python -m aegaeon_operator.spec.crd FOLDER`.

pydantic's JSON schema becomes a structural schema: references inlined, no nulls, bounds and defaults as the API server
writes them. `kubectl explain` prints the descriptions of the types.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from aegaeon_operator.spec.cel import VALIDATIONS
from aegaeon_operator.spec.explain import ALLOWED
from aegaeon_operator.spec.kubernetes import AMOUNT
from aegaeon_operator.spec.quantity import format_duration, format_quantity
from aegaeon_operator.spec.resources import GROUP, VERSION, GpuPool, ModelPool
from aegaeon_operator.spec.status import GpuPoolStatus, ModelPoolStatus

Json = dict[str, Any]

_HEADER = "# Made by `make generate` from operator/aegaeon_operator/spec; do not edit.\n"
# Keys of a JSON schema that a structural schema has as well.
_COPIED = (
    "type",
    "description",
    "enum",
    "format",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
)
# The API server estimates a rule's cost for the largest object: in a list of lists it exceeds the limit.
_MOST_LISTS = 1
_COPIED_BOUNDS = ("minimum", "maximum", "multipleOf")


def definitions() -> dict[str, Json]:
    """Return both definitions by their plural name."""
    gpu_columns = [
        column("Engines", ".status.engines.unified", "string"),
        column("Prefill", ".status.engines.prefill", "string"),
        column("Decode", ".status.engines.decode", "string"),
        column("Models", ".status.summary", "string"),
        column("Answered", ".status.lastAnswered", "date"),
        column("Accelerators", ".spec.accelerator.count", "integer", priority=1),
        column("Policy", ".spec.scheduling.policy", "string", priority=1),
    ]
    model_columns = [
        column("Pool", ".spec.gpuPoolRef.name", "string"),
        column("Models", ".status.summary", "string"),
    ]
    state = [
        column("Ready", ".status.conditions[?(@.type=='Ready')].status", "string"),
        column("Degraded", ".status.conditions[?(@.type=='Degraded')].status", "string"),
        column("Reason", ".status.conditions[?(@.type=='Ready')].reason", "string"),
        column("Age", ".metadata.creationTimestamp", "date"),
        column("Message", ".status.message", "string"),
    ]
    scale = {
        "specReplicasPath": ".spec.engines.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return {
        "gpupools": definition(GpuPool, GpuPoolStatus, "gpool", [*gpu_columns, *state], scale),
        "modelpools": definition(ModelPool, ModelPoolStatus, "mpool", [*model_columns, *state]),
    }


def definition(
    kind: type[BaseModel], status: type[BaseModel], short: str, columns: list[Json], scale: Json | None = None
) -> Json:
    """Return the CustomResourceDefinition of a kind."""
    singular = kind.__name__.lower()
    subresources: Json = {"status": {}} | ({"scale": scale} if scale else {})
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": subresources,
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": object_schema(kind, status)},
    }
    names = {
        "kind": kind.__name__,
        "listKind": f"{kind.__name__}List",
        "plural": f"{singular}s",
        "singular": singular,
        "shortNames": [short],
        "categories": ["aegaeon"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{singular}s.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": names,
            "scope": "Namespaced",
            "versions": [version],
            "conversion": {"strategy": "None"},  # only one version; docs/kubernetes.md describes a second
        },
    }


def object_schema(kind: type[BaseModel], status: type[BaseModel]) -> Json:
    """Return the schema of an object; Kubernetes validates `metadata` itself."""
    spec = kind.model_fields["spec"]
    assert isinstance(spec.annotation, type)
    schema: Json = {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this schema."},
            "kind": {"type": "string", "description": f"{kind.__name__}."},
            "metadata": {"type": "object"},
            "spec": structural(spec.annotation) | {"description": spec.description},
            "status": structural(status) | {"description": "State observed by the operator."},
        },
    }
    rules = kind.model_json_schema().get(VALIDATIONS)
    return schema | ({VALIDATIONS: rules} if rules else {})


def column(name: str, path: str, kind: str, priority: int = 0) -> Json:
    """Return a column of `kubectl get`; priority 1: shown with -o wide."""
    return {"name": name, "jsonPath": path, "type": kind} | ({"priority": priority} if priority else {})


def structural(model: type[BaseModel]) -> Json:
    """Return the structural schema of a type."""
    schema = model.model_json_schema(by_alias=True)
    return _structural(schema, schema.get("$defs", {}))


def _structural(field: Json, defs: Json, lists: int = 0) -> Json:
    """Return the structural schema of a field inside `lists` lists."""
    field = _resolved(field, defs)
    out: Json = {key: field[key] for key in _COPIED if key in field}
    out |= {key: value for key, value in field.items() if key.startswith("x-kubernetes-")}
    if field.get("x-kubernetes-int-or-string"):
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
        out.pop("type", None)
    if "const" in field:
        out["enum"] = [field["const"]]
    own = out.get("pattern") == AMOUNT and VALIDATIONS in out  # a rule of its own describes the format
    if out.get("pattern") in ALLOWED and not own and lists <= _MOST_LISTS:
        out[VALIDATIONS] = [_sentence(out.pop("pattern"), "type" in out), *out.get(VALIDATIONS, [])]
    if out.get("type") in ("integer", "number"):
        out |= _bounds(field, out["type"])
    if "items" in field:
        out["items"] = _structural(field["items"], defs, lists + 1)
    if "properties" in field:
        out["properties"] = {name: _structural(inner, defs, lists) for name, inner in field["properties"].items()}
        if field.get("required"):
            out["required"] = field["required"]
    elif isinstance(field.get("additionalProperties"), dict):
        out["additionalProperties"] = _structural(field["additionalProperties"], defs, lists)
    if field.get("default") is not None:
        out["default"] = _default(field["default"], out)
    return out


def _sentence(pattern: str, is_text: bool) -> Json:
    """Return a rule in place of a pattern: the API server's message for a pattern is the bare expression."""
    matches = f'self.matches(r"{pattern}")'
    rule = matches if is_text else f"type(self) == int ? self >= 0 : {matches}"
    return {"rule": rule, "message": f"must be {ALLOWED[pattern]}"}


def _resolved(field: Json, defs: Json) -> Json:
    """Follow references and reduce `T | None` to T; keys beside the reference win, rules of both apply."""
    if "$ref" in field:
        inner = _resolved(defs[field["$ref"].rpartition("/")[2]], defs)
    elif "anyOf" in field and not field.get("x-kubernetes-int-or-string"):
        (only,) = (option for option in field["anyOf"] if option.get("type") != "null")
        inner = _resolved(only, defs)
    else:
        return field
    beside = {key: value for key, value in field.items() if key not in ("$ref", "anyOf")}
    validations = inner.get(VALIDATIONS, []) + beside.get(VALIDATIONS, [])
    return inner | beside | ({VALIDATIONS: validations} if validations else {})


def _bounds(field: Json, kind: str) -> Json:
    out: Json = {"format": "int64"} if kind == "integer" else {}
    out |= {key: field[key] for key in _COPIED_BOUNDS if key in field}
    for name, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in field:
            out |= {name: field[exclusive], exclusive: True}
    return out


def _default(value: Any, schema: Json) -> Any:
    """Return a default in manifest notation; objects get the defaults of their fields."""
    if "properties" in schema:
        return {}
    if schema.get("x-kubernetes-int-or-string"):
        return format_quantity(value)
    if schema["type"] == "string" and not isinstance(value, str):
        return format_duration(value)
    return list(value) if isinstance(value, tuple) else value


class _Plain(yaml.SafeDumper):
    """A dumper without anchors: a value that occurs twice is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def main(folder: Path) -> None:
    """Write both files."""
    folder.mkdir(exist_ok=True)
    for plural, definition in definitions().items():
        text = yaml.dump(definition, Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)
        (folder / f"{plural}.yaml").write_text(_HEADER + text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
