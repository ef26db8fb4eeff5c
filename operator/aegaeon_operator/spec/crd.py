"""The CustomResourceDefinitions, from the types: `python -m aegaeon_operator.spec.crd FOLDER` writes them.

pydantic's JSON schema becomes a structural one: references inlined, no nulls, bounds and defaults as the API server
writes them. What `kubectl explain` prints are the descriptions of the types.
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

_SAID = "# Made by `make generate` from operator/aegaeon_operator/spec; do not edit.\n"
# Keys of a JSON schema that a structural schema takes as they are.
_KEPT = (
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
# Rules with expressions cost the API server what they may cost at most: in a list of lists more than it allows.
_MOST_LISTS = 1
_KEPT_NUMBERS = ("minimum", "maximum", "multipleOf")


def definitions() -> dict[str, Json]:
    """Both definitions by their plural."""
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
    """The CustomResourceDefinition of a kind."""
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
            "conversion": {"strategy": "None"},  # one version; docs/kubernetes.md says what a second one brings
        },
    }


def object_schema(kind: type[BaseModel], status: type[BaseModel]) -> Json:
    """The whole object: metadata is Kubernetes' own affair."""
    spec = kind.model_fields["spec"]
    assert isinstance(spec.annotation, type)
    found: Json = {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this schema."},
            "kind": {"type": "string", "description": f"{kind.__name__}."},
            "metadata": {"type": "object"},
            "spec": structural(spec.annotation) | {"description": spec.description},
            "status": structural(status) | {"description": "What the operator observed."},
        },
    }
    rules = kind.model_json_schema().get(VALIDATIONS)
    return found | ({VALIDATIONS: rules} if rules else {})


def column(name: str, path: str, kind: str, priority: int = 0) -> Json:
    """A column of `kubectl get`; those of priority 1 show with -o wide."""
    return {"name": name, "jsonPath": path, "type": kind} | ({"priority": priority} if priority else {})


def structural(model: type[BaseModel]) -> Json:
    """The structural schema of a type."""
    schema = model.model_json_schema(by_alias=True)
    return _structural(schema, schema.get("$defs", {}))


def _structural(field: Json, defs: Json, lists: int = 0) -> Json:
    """`lists`: how many it lies in."""
    field = _resolved(field, defs)
    out: Json = {key: field[key] for key in _KEPT if key in field}
    out |= {key: value for key, value in field.items() if key.startswith("x-kubernetes-")}
    if field.get("x-kubernetes-int-or-string"):
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
        out.pop("type", None)
    if "const" in field:
        out["enum"] = [field["const"]]
    own = out.get("pattern") == AMOUNT and VALIDATIONS in out  # it tells what it should be
    if out.get("pattern") in ALLOWED and not own and lists <= _MOST_LISTS:
        out[VALIDATIONS] = [_sentence(out.pop("pattern"), "type" in out), *out.get(VALIDATIONS, [])]
    if out.get("type") in ("integer", "number"):
        out |= _bounds(field, out["type"])
    if "items" in field:
        out["items"] = _structural(field["items"], defs, lists + 1)
    if "properties" in field:
        out["properties"] = {name: _structural(one, defs, lists) for name, one in field["properties"].items()}
        if field.get("required"):
            out["required"] = field["required"]
    elif isinstance(field.get("additionalProperties"), dict):
        out["additionalProperties"] = _structural(field["additionalProperties"], defs, lists)
    if field.get("default") is not None:
        out["default"] = _default(field["default"], out)
    return out


def _sentence(pattern: str, is_text: bool) -> Json:
    """A rule in place of a pattern: of a pattern the API server shows nothing but the expression."""
    matches = f'self.matches(r"{pattern}")'
    rule = matches if is_text else f"type(self) == int ? self >= 0 : {matches}"
    return {"rule": rule, "message": f"must be {ALLOWED[pattern]}"}


def _resolved(field: Json, defs: Json) -> Json:
    """References followed and `T | None` taken as T; what stands beside the reference wins, rules of both count."""
    if "$ref" in field:
        inner = _resolved(defs[field["$ref"].rpartition("/")[2]], defs)
    elif "anyOf" in field and not field.get("x-kubernetes-int-or-string"):
        (only,) = (one for one in field["anyOf"] if one.get("type") != "null")
        inner = _resolved(only, defs)
    else:
        return field
    beside = {key: value for key, value in field.items() if key not in ("$ref", "anyOf")}
    validations = inner.get(VALIDATIONS, []) + beside.get(VALIDATIONS, [])
    return inner | beside | ({VALIDATIONS: validations} if validations else {})


def _bounds(field: Json, kind: str) -> Json:
    out: Json = {"format": "int64"} if kind == "integer" else {}
    out |= {key: field[key] for key in _KEPT_NUMBERS if key in field}
    for name, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in field:
            out |= {name: field[exclusive], exclusive: True}
    return out


def _default(value: Any, schema: Json) -> Any:
    """As a person would write it; objects are filled by the defaults of their fields."""
    if "properties" in schema:
        return {}
    if schema.get("x-kubernetes-int-or-string"):
        return format_quantity(value)
    if schema["type"] == "string" and not isinstance(value, str):
        return format_duration(value)
    return list(value) if isinstance(value, tuple) else value


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice twice: anchors are not for people."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def main(folder: Path) -> None:
    """Write both files."""
    folder.mkdir(exist_ok=True)
    for plural, found in definitions().items():
        text = yaml.dump(found, Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)
        (folder / f"{plural}.yaml").write_text(_SAID + text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
