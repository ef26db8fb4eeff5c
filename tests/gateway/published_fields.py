"""Each optional field of OpenAI's and Anthropic's published APIs with example values, from the types of their clients.

Both packages are generated from the APIs' OpenAPI documents. Prints published_fields.json, in an environment that has
them: `python tests/gateway/published_fields.py > tests/gateway/published_fields.json`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import typing_extensions

DEEPEST = 2
"""levels of objects in which each optional field is given once"""
MODULES = (
    "anthropic.types.message_count_tokens_params",
    "anthropic.types.message_create_params",
    "openai.types.chat.completion_create_params",
    "openai.types.completion_create_params",
    "openai.types.responses.response_create_params",
)
PLAIN: dict[Any, list[Any]] = {
    str: ["a"],
    int: [1],
    float: [0.5],
    bool: [True, False],
    type(None): [None],
    object: ["a"],
}


def main() -> None:
    counts, messages, chats, completions, responses = map(importlib.import_module, MODULES)
    kinds = {
        "chat": chats.CompletionCreateParamsNonStreaming,
        "completions": completions.CompletionCreateParamsNonStreaming,
        "responses": responses.ResponseCreateParamsNonStreaming,
        "messages": messages.MessageCreateParamsNonStreaming,
    }
    fields = [
        {"endpoint": endpoint, "field": name, "value": value}
        for endpoint, kind in kinds.items()
        for name, type_ in typing.get_type_hints(kind, include_extras=True).items()
        if not required(type_) and name != "model"
        for value in distinct(values_of(type_, DEEPEST))
    ]
    versions = {name: importlib.metadata.version(name) for name in ("openai", "anthropic")}
    rows = ",\n".join(json.dumps(field) for field in fields)
    counted = sorted(typing.get_type_hints(counts.MessageCountTokensParams, include_extras=True))
    head = {"versions": versions, "count_tokens": counted}
    sys.stdout.write(f'{json.dumps(head)[:-1]}, "fields": [\n{rows}\n]}}\n')


def required(hint: Any) -> bool:
    """Both packages mark what is required, and nothing else."""
    return get_origin(hint) is typing.Required


def distinct(values: Iterator[Any]) -> list[Any]:
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())


def values_of(type_: Any, depth: int) -> Iterator[Any]:
    """Example values: every alternative, and of objects each optional field once."""
    origin = get_origin(type_)
    if type_ in PLAIN:
        yield from PLAIN[type_]
    elif origin is Literal:
        yield from get_args(type_)
    elif origin in (typing.Union, types.UnionType):
        for alternative in get_args(type_):
            yield from values_of(alternative, depth)
    elif origin in (typing.Annotated, typing.Required, typing.NotRequired):
        yield from values_of(get_args(type_)[0], depth)
    elif typing_extensions.is_typeddict(type_):
        yield from objects_of(type_, depth)
    elif origin is not None and issubclass(origin, (dict, typing.Mapping)):
        yield {"a": next(values_of(get_args(type_)[1], depth), "a")}
    elif origin is not None:  # a sequence
        for value in values_of(get_args(type_)[0], depth):
            yield [value]
    else:
        yield "a"


def objects_of(type_: Any, depth: int) -> Iterator[Any]:
    hints = typing.get_type_hints(type_, include_extras=True)
    least = {name: next(values_of(hint, 0), "a") for name, hint in hints.items() if required(hint)}
    yield least
    for name in sorted(hints.keys() - least) if depth else ():
        for value in values_of(hints[name], depth - 1):
            yield {**least, name: value}


if __name__ == "__main__":
    main()
