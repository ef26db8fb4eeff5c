"""Writes api.md beside this file: the endpoints, and every parameter of completions beside those of vLLM's server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from aegaeon_gateway.http.openapi import description
from aegaeon_gateway.request.anthropic_schema import CountRequest, MessagesRequest
from aegaeon_gateway.request.batch_schema import BatchRequest
from aegaeon_gateway.request.elsewhere import HONOURED, MEANINGFUL, SOURCES
from aegaeon_gateway.request.parameters import NO_EFFECT, REFUSED, Hint
from aegaeon_gateway.request.parse import KNOWN
from aegaeon_gateway.request.pooled import BODIES
from aegaeon_gateway.request.responses_schema import ResponsesRequest
from aegaeon_gateway.request.schema import ChatRequest, CompletionRequest

HERE = Path(__file__).parent
Schema = dict[str, Any]
COMPLETIONS = {ChatRequest: "chats", CompletionRequest: "completions"}
POOLED = {body.kind: body.title for body in BODIES.values()}

VLLM = frozenset(line for line in (HERE / "vllm_parameters.txt").read_text().splitlines() if not line.startswith("#"))
INTRODUCTION = """
# The API

OpenAI's, at `http://HOST:PORT/v1`; `GET /openapi.json` describes requests and answers in full. Below is every parameter
of its requests, all of [vLLM](https://docs.vllm.ai)'s server among them; chats and completions come first. A parameter
works, has no effect because none is called for, or is refused: with 400, which names it. What is null, or asks for
nothing, is accepted everywhere.

What has no effect is left out, and the answer says so: header `x-aegaeon-ignored: tools[8] web_search,
client_metadata`, 1,024 bytes at most. That goes for names that no table has, for hints, and for whatever else is in
earlier messages. Operators see it in the counter `aegaeon_gateway_ignored_fields_total` by field.
Refused with 400 are what changes an answer and cannot be given, a likely misspelling (`max_token`), and what [changes
answers on other servers](#what-other-servers-know). With `strict: true`, in a gateway's config or of a tenant, what has
no effect is refused as well.
"""

RESPONSES = """
## Responses

OpenAI's newer API, [translated](../guides/other-apis.md#responses) into chats. `GET` and `DELETE` are of responses that
are kept.
"""
MESSAGES = """
## Messages

Anthropic's API, [translated](../guides/other-apis.md) into chats. Its clients send their key as `x-api-key`, which
every endpoint takes as well as `Authorization: Bearer KEY`. Errors have Anthropic's form. `count_tokens` takes what is
not marked ².
"""
OTHER_SERVERS = """
## What other servers know

These names change answers there, so that none is left out: each does the same here, or is refused. Where they are from:

"""
OF_PROMPTS = """
## Embeddings, reranking and scores

Of [models that generate no text](../guides/embeddings.md); parameters and answers are those of vLLM's server. Where
only some values are named, others are refused.
"""
BATCHES = """
## Batches

Requests of a file, [answered on what online traffic leaves](../guides/batches.md). The body of `POST /v1/batches`:
"""
_ELSEWHERE = {name for kind in POOLED for name in kind.__struct_encode_fields__}  # of these endpoints of vLLM's server


def main() -> None:
    """The page."""
    (HERE / "api.md").write_text("\n".join(page()) + "\n", "utf-8")


def page() -> Iterator[str]:
    """Endpoints, then a table for each kind of support."""
    document = json.loads(description())
    schemas = document["components"]["schemas"]
    yield f"<!-- made by `make generate`; do not edit -->\n{INTRODUCTION}\n## Endpoints\n\n| | |\n|---|---|"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"| `{method.upper()} {path}` | {operation['summary']} |"
    yield "\n## What works\n\n| parameter | of | type | |\n|---|---|---|---|"
    yield from working(schemas, COMPLETIONS)
    yield "\n## What has no effect by design\n\n| parameter | why |\n|---|---|"
    hints = {name: entry for name, entry in REFUSED.items() if isinstance(entry, Hint)}
    yield from (f"| {marked(name)} | {entry.reason} |" for name, entry in sorted({**NO_EFFECT, **hints}.items()))
    yield "\n## What is refused\n\n| parameter | unless it is | why |\n|---|---|---|"
    for name, refused in sorted(REFUSED.items()):
        if isinstance(refused, Hint):
            continue
        neutral = ", ".join(f"`{json.dumps(value)}`" for value in refused.allowed)
        yield f"| {marked(name)} | {neutral} | {refused.reason} |"
    yield OTHER_SERVERS + "".join(f"- {server}: {source}\n" for server, source in SOURCES.items())
    yield "| name | of | unless it is | why |\n|---|---|---|---|"
    yield from (f"| `{name}` | | | the same as `{ours}` |" for name, ours in HONOURED.items())
    for name, entry in sorted(MEANINGFUL.items()):
        neutral = ", ".join(f"`{json.dumps(value)}`" for value in entry.allowed)
        yield f"| `{name}` | {entry.server} | {neutral} | {entry.reason} |"
    yield f"\n¹ vLLM's server does not know it.\n{OF_PROMPTS}\n| parameter | of | type | |\n|---|---|---|---|"
    yield from working(schemas, POOLED)
    yield from (f"| `{name}` | {of} | {cells} |" for kind, of in POOLED.items() for name, cells in refusals(kind))
    yield RESPONSES
    yield from other(ResponsesRequest, schemas)
    yield MESSAGES
    yield from other(MessagesRequest, schemas, without=CountRequest, marked_as="²")
    yield BATCHES
    yield from other(BatchRequest, schemas)


def working(schemas: dict[str, Schema], kinds: Mapping[type[Struct], str]) -> Iterator[str]:
    """A row for each parameter that has an effect, more where the endpoints differ in it."""
    rows: dict[str, dict[str, list[str]]] = {}
    for kind, of in kinds.items():
        for name in kind.__struct_encode_fields__:
            field = schemas[kind.__name__]["properties"][name]
            meaning = f"{type_of(field, schemas)} | {field.get('description', '')}"
            rows.setdefault(name, {}).setdefault(meaning, []).append(of)
    every = "both" if len(kinds) == 2 else "all"
    for name, meanings in sorted(rows.items()):
        for meaning, of in meanings.items():
            yield f"| {marked(name)} | {every if len(of) == len(kinds) else ', '.join(of)} | {meaning} |"


def other(kind: Any, schemas: dict[str, Schema], *, without: Any = None, marked_as: str = "") -> Iterator[str]:
    """One table of an endpoint's own: what works, what has no effect, what is refused."""
    common = without.__struct_encode_fields__ if without else kind.__struct_encode_fields__
    yield "| parameter | type | |\n|---|---|---|"
    properties = schemas[kind.__name__]["properties"]
    for name in kind.__struct_encode_fields__:
        field = properties[name]
        mark = "" if name in common else f" {marked_as}"
        yield f"| `{name}`{mark} | {type_of(field, schemas)} | {field.get('description', '')} |"
    if kind not in KNOWN:
        return
    for name, entry in KNOWN[kind].no_effect.items():
        yield f"| `{name}` | {type_of(properties[name], schemas)} | no effect: {entry.reason} |"
    yield from (f"| `{name}` | {said} |" for name, said in refusals(kind))


def refusals(kind: Any) -> Iterator[tuple[str, str]]:
    """What is refused unless it asks for nothing: by name, its neutral values and the reason as two cells."""
    for name, refused in KNOWN[kind].refused.items():
        neutral = ", ".join(f"`{json.dumps(value)}`" for value in refused.allowed)
        effect = "else no effect" if isinstance(refused, Hint) else "else refused"
        yield name, f"{neutral} | {effect}: {refused.reason}"


def marked(name: str) -> str:
    return f"`{name}`" if name in VLLM or name in _ELSEWHERE else f"`{name}` ¹"


def type_of(field: Schema, schemas: dict[str, Schema]) -> str:
    """For people, without null, which all take."""
    if "$ref" in field:
        return "object"
    if "anyOf" in field:
        kinds = [type_of(one, schemas) for one in field["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kind = {"string": "text", "array": "list", "boolean": "true or false"}.get(field["type"], field["type"])
    if field["type"] == "array" and "items" in field:
        kind = f"list of {type_of(field['items'], schemas)}"
    return f"{kind}{bounds(field)}"


def bounds(field: Schema) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    if low is None:
        return ""
    if low < -(2**31):
        return " of 64 bits"
    return f" from {low:g}" + ("" if high is None else f" to {high:g}")
