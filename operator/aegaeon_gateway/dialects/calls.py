"""The bodies of calls, by family. Each reader raises ValueError for what is no call: it stays part of the content."""

from __future__ import annotations

import json
import re
from typing import Any

from aegaeon_gateway.dialects.pieces import Call

_DECODER = json.JSONDecoder()
_FENCE = re.compile(r"\s*```json\s*\n(.*)\n\s*```\s*", re.DOTALL)
_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")
_WITHOUT_ARGUMENTS = {"name", "id", "type", *_ARGUMENTS}


def hermes(body: str) -> list[Call]:
    """{"name": ..., "arguments": {...}}, or `parameters`: Hermes 2 Pro, Qwen2.5, Qwen3."""
    return [_call(_loads(body))]


def llama3(body: str) -> list[Call]:
    """{"name": ..., "parameters": {...}}, several behind each other, with or without semicolons: Llama 3.1, 3.2."""
    calls, at = [], 0
    body = body.strip(_SPACE + ";")
    while at < len(body):
        try:
            value, at = _DECODER.raw_decode(body, at)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        calls.append(_call(value))
        while at < len(body) and body[at] in _SPACE + ";":
            at += 1
    return calls


def mistral(body: str) -> list[Call]:
    """[{"name": ..., "arguments": {...}}, ...], or of newer tokenizers NAME[ARGS]{...}: Mistral."""
    if "[ARGS]" in body:
        head, _, arguments = body.partition("[ARGS]")
        name = head.partition("[CALL_ID]")[0].strip()
        if not name:
            raise ValueError("a call has no name")
        return [Call(name, _written(_loads(arguments)))]
    values = _loads(body)
    if not isinstance(values, list) or not values:
        raise ValueError("calls are a list")
    return [_call(value) for value in values]


def deepseek(body: str) -> list[Call]:
    """function<sep>NAME, then fenced JSON (V3, R1), or NAME<sep>{...} (V3.1): DeepSeek."""
    head, separator, rest = body.partition("<｜tool▁sep｜>")
    if not separator:
        raise ValueError("a call has no separator")
    name, newline, fenced = rest.partition("\n")
    if newline and (match := _FENCE.fullmatch(fenced)):
        return [Call(_name(name), _written(_loads(match[1])))]
    return [Call(_name(head), _written(_loads(rest)))]


def harmony(recipient: str, body: str) -> list[Call]:
    """JSON for `functions.NAME`: gpt-oss."""
    return [Call(_name(recipient.removeprefix("functions.")), _written(_loads(body)))]


def forced(body: str) -> list[Call]:
    """One call, or a list of them, as nothing else: what a model writes under `tool_choice`."""
    value = _loads(body)
    return [_call(item) for item in (value if isinstance(value, list) else [value])]


def _call(value: Any) -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("a call is an object with a name")
    arguments = next((value[key] for key in _ARGUMENTS if key in value), None)
    if arguments is None and not value.keys() <= _WITHOUT_ARGUMENTS:
        raise ValueError("a call has no arguments, but something else")
    return Call(_name(value["name"]), _written({} if arguments is None else arguments))


def _name(text: str) -> str:
    name = text.strip()
    if not name:
        raise ValueError("a call has no name")
    return name


def _written(arguments: Any) -> str:
    """As clients get them. A model that wrote them as text already means that text."""
    if isinstance(arguments, str):
        arguments = _loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    written.encode()  # half a surrogate pair, which JSON can spell, is no text for a client
    return written


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
