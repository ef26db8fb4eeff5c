"""Structured output: what a request says of the form of its output, in three dialects, as one constraint.

OpenAI's `response_format`, vLLM's `structured_outputs`, and vLLM's older `guided_*`. A request names one form at most.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from msgspec import Meta, Struct

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.sampling_fields import SamplingFields
from aegaeon_gateway.request.subschemas import Schema, changed
from aegaeon_proto.constraints import JSON_OBJECT, lark_of, lark_of_choice
from aegaeon_proto.engine.sampling import ConstraintKind
from aegaeon_proto.v1 import model_pb2 as pb

MAX_CHOICE_TEXTS = 1024
_CODE = "invalid_constraint"
_KINDS = {
    ConstraintKind.JSON_SCHEMA: pb.CONSTRAINT_KIND_JSON_SCHEMA,
    ConstraintKind.REGEX: pb.CONSTRAINT_KIND_REGEX,
    ConstraintKind.LARK: pb.CONSTRAINT_KIND_LARK,
}

JsonText = str | dict[str, Any]
"""a schema, or one as text"""
_SECONDS = "^[^:]*:[0-9]{2}:[0-5]"  # the 60th is one of few minutes
_FORMATS = {"date-time": _SECONDS, "time": _SECONDS, "email": "^[^@]{1,64}@.{1,180}$"}
Choices = Annotated[list[str], Meta(min_length=1, max_length=MAX_CHOICE_TEXTS)]


class JsonSchema(Struct, forbid_unknown_fields=True, frozen=True):
    """OpenAI's `json_schema` object. The output follows the schema with and without `strict`."""

    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(Struct, forbid_unknown_fields=True, frozen=True):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Struct, forbid_unknown_fields=True, frozen=True):
    """vLLM's `structured_outputs`; of the first five one is given."""

    json: JsonText | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_fallback: bool | None = None
    whitespace_pattern: None = None
    structural_tag: None = None
    disable_any_whitespace: Literal[False] | None = None
    disable_additional_properties: Literal[False] | None = None


class StructuredFields(SamplingFields, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The parameters of both endpoints that say something of the output's form."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonText | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    guided_whitespace_pattern: None = None


@dataclass(frozen=True, slots=True)
class Form:
    """One form that a request asks for, and the parameter that does."""

    param: str
    kind: ConstraintKind
    text: str


def form_of(request: StructuredFields) -> Form | None:
    """The form that is asked for, not compiled yet; None for any text. Raises InvalidRequestError."""
    forms = list(_forms(request))
    if len(forms) > 1:
        names = " and ".join(form.param for form in forms)
        raise InvalidRequestError(f"{names} both say what the output must be; send one", param=forms[1].param)
    return forms[0] if forms else None


class Compiler(Protocol):
    """Says why a constraint cannot be compiled, or nothing; `proof` is for engines."""

    @property
    def proof(self) -> str: ...

    def fault(self, kind: ConstraintKind, text: str) -> str: ...


def constraint_of(form: Form, end_ids: tuple[int, ...], compiler: Compiler) -> pb.Constraint:
    """Make the constraint that engines receive, of a form that compiles. Raises InvalidRequestError, which says where
    it does not.

    `end_ids`: the model's EOS ids.
    """
    if not end_ids:
        raise _invalid(form.param, "this model has no EOS token, so that a structured output could not end")
    if fault := compiler.fault(form.kind, form.text):
        raise _invalid(form.param, _sentence(form, fault))
    return pb.Constraint(kind=_KINDS[form.kind], text=form.text, end_ids=end_ids, proof=compiler.proof)


def _forms(request: StructuredFields) -> Iterator[Form]:
    """In the order of their dialects."""
    yield from _of_response_format(request.response_format)
    if (outputs := request.structured_outputs) is not None:
        forms = list(_outputs("structured_outputs.", outputs.json, outputs.regex, outputs.choice, outputs.grammar))
        if outputs.json_object:
            forms.append(Form("structured_outputs.json_object", ConstraintKind.JSON_SCHEMA, JSON_OBJECT))
        if not forms:
            raise _invalid("structured_outputs", "send one of json, regex, choice, grammar and json_object")
        yield from forms
    yield from _outputs(
        "guided_", request.guided_json, request.guided_regex, request.guided_choice, request.guided_grammar
    )


def _of_response_format(format_: ResponseFormat | None) -> Iterator[Form]:
    if format_ is None or format_.type == "text":
        return
    if format_.type == "json_object":
        yield Form("response_format", ConstraintKind.JSON_SCHEMA, JSON_OBJECT)
        return
    schema = None if format_.json_schema is None else format_.json_schema.schema
    if schema is None:
        raise _invalid("response_format.json_schema", "schema is missing")
    yield _of_schema("response_format.json_schema.schema", schema)


def _outputs(
    prefix: str, schema: JsonText | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> Iterator[Form]:
    if schema is not None:
        yield _of_schema(f"{prefix}json", schema)
    if regex is not None:
        yield Form(f"{prefix}regex", ConstraintKind.REGEX, regex)
    if choice is not None:
        yield Form(f"{prefix}choice", ConstraintKind.LARK, lark_of_choice(choice))
    if grammar is not None:
        try:
            yield Form(f"{prefix}grammar", ConstraintKind.LARK, lark_of(grammar))
        except ValueError as error:
            raise _invalid(f"{prefix}grammar", str(error)[:500]) from error


def _of_schema(param: str, schema: JsonText) -> Form:
    """Raises InvalidRequestError for a text that is no JSON."""
    try:
        document = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(changed(document, _tightened), ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise _invalid(param, f"no JSON that can be read: {error}") from error
    return Form(param, ConstraintKind.JSON_SCHEMA, text)


def _tightened(schema: Schema) -> Schema:
    """A format with what the library leaves out of it."""
    pattern = _FORMATS.get(str(schema.get("format")))
    if pattern is None or not isinstance(schema.get("allOf", []), list):
        return schema
    return {**schema, "allOf": [*schema.get("allOf", []), {"pattern": pattern}]}


def _sentence(form: Form, fault: str) -> str:
    """Name the library's fault, and where in a schema the keyword lies that it names."""
    named = fault.removeprefix("Unimplemented keys: ")
    if form.kind is not ConstraintKind.JSON_SCHEMA or named == fault:
        return fault.strip()[:500]
    keys = json.loads(named)
    places = _places(json.loads(form.text), keys, "#")
    return f"{', '.join(keys)}: not supported in a schema, at {next(places, '#')}"


def _places(schema: Any, keys: list[str], at: str) -> Iterator[str]:
    """JSON pointers of the subschemas that have all of these keys."""
    if isinstance(schema, dict):
        if all(key in schema for key in keys):
            yield at
        for name, inner in schema.items():
            yield from _places(inner, keys, f"{at}/{name}")
    elif isinstance(schema, list):
        for number, inner in enumerate(schema):
            yield from _places(inner, keys, f"{at}/{number}")


def _invalid(param: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}: {message}", param=param, code=_CODE)
