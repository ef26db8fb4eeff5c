"""A body that the types of an endpoint refuse, made into one that they take: what asks for nothing here is left out.

Runs on what strict decoding has refused alone, so that requests which need none of it pay nothing for it. Left out are
unknown names, and hints. A likely misspelling is an error, and so is a name that changes answers elsewhere.
Nothing is left out of what says the form of the answer: those objects are decoded as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec.inspect as shapes
from msgspec import Struct

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.elsewhere import KNOWN_TO_BE_SENT
from aegaeon_gateway.request.misspelt import meant
from aegaeon_gateway.request.parameters import Hint, Known, Refused
from aegaeon_gateway.request.receipt import Receipt

Json = dict[str, Any]
Adapt = Callable[[Json, Receipt], None]
"""changes the parts of a body that are of one API; raises InvalidRequestError"""
EXACT = frozenset(("response_format", "structured_outputs", "tool_choice", "text.format", "output_config.format"))
"""objects of which nothing is left out"""
LISTS = frozenset(("documents", "input", "messages", "system", "tools"))
"""what is in them is history, or of another program: any name may be there"""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The fields that bodies of one endpoint may have. `siblings`: fields of the other endpoints of its kind.
    `harmless`: names that have no effect on any of them, and are no misspellings. `elsewhere`: what changes answers on
    other endpoints or servers."""

    kind: type[Struct]
    known: Known
    adapt: Adapt | None = None
    siblings: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()
    elsewhere: Mapping[str, Refused] = field(default_factory=dict)


@dataclass(slots=True)
class Shape:
    """The values that may be at a place: objects by the value of their `tag`, lists of `items`; else it is not looked
    into."""

    tag: str = ""
    objects: dict[Any, dict[str, Shape]] = field(default_factory=dict)
    items: Shape | None = None

    def fields_of(self, value: Json) -> dict[str, Shape] | None:
        tag = value.get(self.tag) if self.tag else None
        return self.objects.get(tag) if isinstance(tag, str | None) else None


def opened(endpoint: Endpoint, body: bytes | bytearray, receipt: Receipt) -> bytes:
    """The body without what has no effect. Raises InvalidRequestError."""
    try:
        return _opened(endpoint, body, receipt)
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply; send less", code="invalid_json") from error


def _opened(endpoint: Endpoint, body: bytes | bytearray, receipt: Receipt) -> bytes:
    value = _json_of(body)
    if not isinstance(value, dict):
        return bytes(body)
    if endpoint.adapt is not None:
        endpoint.adapt(value, receipt)
    shape = shape_of(endpoint.kind)
    _top(endpoint, value, shape.objects[None], receipt)
    _within(value, shape, "", receipt)
    return json.dumps(value).encode()


def _json_of(body: bytes | bytearray) -> Any:
    """Parse a body that is known to be JSON. Raises InvalidRequestError."""
    try:
        return json.loads(body)
    except ValueError as error:  # there is a limit to the digits of a number
        raise InvalidRequestError(f"The body cannot be read: {error}", code="invalid_json") from error


def _top(endpoint: Endpoint, body: Json, fields: Mapping[str, Shape], receipt: Receipt) -> None:
    """Names beside the fields of the type."""
    for name in [name for name in body if name not in fields]:
        refused = endpoint.known.refused.get(name)
        if name in endpoint.known.no_effect or isinstance(refused, Hint):
            value = body.pop(name)
            if refused.asks(value) if refused else value is not None:
                receipt.ignore(name)
        elif refused is None:
            _unknown(endpoint, name, body, fields, receipt)


def _unknown(endpoint: Endpoint, name: str, body: Json, fields: Mapping[str, Shape], receipt: Receipt) -> None:
    value = body.pop(name)
    meaningful = endpoint.elsewhere.get(name)
    if meaningful is not None:
        if meaningful.asks(value):
            raise meaningful.error(name)
        return
    if value is not None and name in endpoint.siblings:
        message = f"{name} is not supported here: it is of another endpoint; leave it out"
        raise InvalidRequestError(message, param=name, code="unsupported_parameter")
    compared = not receipt.full and name not in endpoint.harmless
    if compared and (right := meant(name, [*fields, *endpoint.known.no_effect], body)):
        raise misspelt(name, right)
    receipt.ignore(name)


def misspelt(param: str, right: str) -> InvalidRequestError:
    message = f"{param} is not a parameter known here; did you mean {right}?"
    return InvalidRequestError(message, param=param, code="unsupported_parameter")


def _within(value: Any, shape: Shape, path: str, receipt: Receipt) -> None:
    """Leave out names that objects below the top do not have."""
    if isinstance(value, list) and shape.items is not None:
        for item in value:
            _within(item, shape.items, f"{path}[]", receipt)
        return
    fields = shape.fields_of(value) if isinstance(value, dict) else None
    if fields is None:
        return
    listed = path.partition("[")[0].partition(".")[0] in LISTS
    for name in list(value):
        place = f"{path}.{name}" if path else name
        if name in fields:
            if place not in EXACT:
                _within(value[name], fields[name], place, receipt)
        elif path and name != shape.tag:
            if not (listed or receipt.full) and (right := meant(name, fields, value)):
                raise misspelt(place, right)
            del value[name]
            receipt.ignore(place)


def labels(endpoints: Iterable[Endpoint]) -> frozenset[str]:
    """The labels that the counter may have: names of the tables, and of fields that agents are known to send."""
    tables = (name for endpoint in endpoints for name in (*endpoint.known.refused, *endpoint.known.no_effect))
    return frozenset((*tables, *KNOWN_TO_BE_SENT))


@cache
def shape_of(kind: type[Struct]) -> Shape:
    return _shape(shapes.type_info(kind))


def _shape(type_: shapes.Type) -> Shape:
    match type_:
        case shapes.Metadata(type=inner):
            return _shape(inner)
        case shapes.ListType(item_type=item):
            return Shape(items=_shape(item))
        case shapes.StructType(fields=fields, tag_field=tag, tag=value):
            return Shape(tag or "", {value: {each.encode_name: _shape(each.type) for each in fields}})
        case shapes.UnionType(types=types):
            return _joined([_shape(each) for each in types])
    return Shape()


def _joined(alternatives: list[Shape]) -> Shape:
    """The shape of a union, whose objects have one tag field if there are several."""
    joined = Shape()
    for shape in alternatives:
        joined.tag = joined.tag or shape.tag
        joined.objects |= shape.objects
        joined.items = joined.items or shape.items
    return joined
