"""Requests of the Responses API as clients of the field write them, in the form that responses_schema.py takes."""

from __future__ import annotations

import json
from typing import Any, get_args

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.open_chat import least_top_p, leave_hints
from aegaeon_gateway.request.open_parts import arguments_of, texts_of
from aegaeon_gateway.request.receipt import Receipt
from aegaeon_gateway.request.responses_items import FIELDS, VALUES, PartType
from aegaeon_gateway.request.responses_schema import INCLUDED, TOOL_TYPES

Json = dict[str, Any]
_HINTS: dict[str, dict[str, tuple[Any, ...]]] = {
    # of objects: the values that are taken, others have no effect
    "text": {"verbosity": ("medium",)},
    "reasoning": {
        "summary": ("auto",),
        "generate_summary": ("auto",),
        "context": ("auto",),
        "mode": ("standard",),
    },
    "stream_options": {"include_obfuscation": (False,)},
}
_TOOL_HINTS: dict[str, tuple[Any, ...]] = {
    "defer_loading": (False,),
    "allowed_callers": (["direct"], []),
    "output_schema": (),
}
_PLAIN_CHOICES = ("auto", "none", "required")
_PART_TYPES = get_args(PartType)
_PARTS = {"message": "content", "function_call_output": "output", "custom_tool_call_output": "output"}


def adapt_response(body: Json, receipt: Receipt) -> None:
    """Raises InvalidRequestError."""
    least_top_p(body)
    for name, hints in _HINTS.items():
        if isinstance(options := body.get(name), dict):
            leave_hints(options, hints, name, receipt)
    if isinstance(include := body.get("include"), list):
        for entry in include:
            if entry not in INCLUDED:
                receipt.ignore("include", str(entry))
        body["include"] = [entry for entry in include if entry in INCLUDED]
    if isinstance(metadata := body.get("metadata"), dict):
        body["metadata"] = {name: arguments_of(value) for name, value in metadata.items()}
    if isinstance(items := body.get("input"), list):
        body["input"] = _items(items, receipt)
    if isinstance(tools := body.get("tools"), list):
        body["tools"] = [tool for at, tool in enumerate(tools) if _kept(tool, f"tools[{at}]", receipt)]
    _choose(body, receipt)


# ---- tools -----------------------------------------------------------------------------------------------------------


def _kept(tool: Any, place: str, receipt: Receipt) -> bool:
    """True when it can be called: a tool that runs on a server cannot."""
    if not isinstance(tool, dict):
        return True
    kind = tool.get("type")
    if kind not in TOOL_TYPES:
        receipt.ignore(place, str(kind))
        return False
    if isinstance(function := tool.get("function"), dict):  # as chats have it
        tool |= function
        del tool["function"]
    leave_hints(tool, _TOOL_HINTS, "tools[]", receipt)
    if isinstance(inner := tool.get("tools"), list):
        tool["tools"] = [nested for at, nested in enumerate(inner) if _kept(nested, f"{place}.tools[{at}]", receipt)]
    return True


def _choose(body: Json, receipt: Receipt) -> None:
    """A choice that demands a tool which was left out is an error."""
    choice = body.get("tool_choice")
    if not isinstance(choice, dict):
        return
    kind = choice.get("type")
    if kind in _PLAIN_CHOICES:
        body["tool_choice"] = kind
    elif isinstance(function := choice.get("function"), dict):
        body["tool_choice"] = {"type": "function", "name": function.get("name")}
    elif kind == "allowed_tools" and isinstance(tools := choice.get("tools"), list):
        kept = [tool for tool in tools if not isinstance(tool, dict) or tool.get("type") in TOOL_TYPES]
        if len(kept) < len(tools):
            receipt.ignore("tool_choice.tools")
        if not kept:
            raise _demanded("allowed_tools")
        choice["tools"] = kept
    elif kind not in TOOL_TYPES:
        raise _demanded(str(kind)[:64])


def _demanded(kind: str) -> InvalidRequestError:
    message = f"tool_choice is not supported here: {kind} demands a tool that cannot be called"
    return InvalidRequestError(message, param="tool_choice", code="unsupported_parameter")


# ---- items -----------------------------------------------------------------------------------------------------------


def _items(items: list[Any], receipt: Receipt) -> list[Any]:
    last = max((at for at, item in enumerate(items) if _is_answer(item)), default=-1)
    made = (_item(item, receipt, newest=at > last) for at, item in enumerate(items))
    return [item for item in made if item is not None]


def _is_answer(item: Any) -> bool:
    return isinstance(item, dict) and (item.get("role") == "assistant" or item.get("type") == "function_call")


def _item(item: Any, receipt: Receipt, *, newest: bool) -> Any:
    if isinstance(item, str):
        return {"role": "user", "content": item}
    if not isinstance(item, dict):
        return item
    kind = str(item.get("type") or ("message" if "role" in item else "item_reference"))
    if kind not in FIELDS:
        item = _of_another_kind(item, kind, receipt)
        kind = item["type"] if item else kind
    if item is None:
        return None
    newest = newest and kind == "message" and item.get("role") == "user"
    if (name := _PARTS.get(kind)) is not None:
        item[name] = texts_of(item.get(name), f"input[].{name}", receipt, newest=newest, types=_PART_TYPES)
    if name == "output":
        item["call_id"] = item.get("call_id") or item.get("id") or ""
    if kind == "reasoning":
        _reasoning(item, receipt)
    if kind == "function_call":
        item["arguments"] = arguments_of(item.get("arguments"))
    _leave_values(item, kind, receipt)
    return item


def _reasoning(item: Json, receipt: Receipt) -> None:
    if item.pop("encrypted_content", None) is not None:
        receipt.ignore("input[].encrypted_content")
    for name in ("summary", "content"):
        if item.get(name) is not None:
            item[name] = texts_of(item[name], f"input[].{name}", receipt, types=_PART_TYPES)


def _leave_values(item: Json, kind: str, receipt: Receipt) -> None:
    """Leave out fields of other kinds of items."""
    needed, allowed = FIELDS[kind]
    for name in [value for value in VALUES if value in item and value not in needed and value not in allowed]:
        if item.pop(name) is not None:
            receipt.ignore(f"input[].{name}")
    for name in ("id", "status", "phase", "namespace"):
        if not isinstance(item.get(name), str | None):
            del item[name]
            receipt.ignore(f"input[].{name}")


def _of_another_kind(item: Json, kind: str, receipt: Receipt) -> Json | None:
    """Calls and outputs of tools that clients run are calls and outputs; what ran on a server is left out."""
    call = item.get("call_id")
    if isinstance(call, str) and kind.endswith("_call"):
        arguments = {name: value for name, value in item.items() if name not in {"type", "id", "call_id", "status"}}
        arguments = arguments["action"] if isinstance(arguments.get("action"), dict) else arguments
        return {"type": "function_call", "call_id": call, "name": kind[: -len("_call")], "arguments": arguments}
    if kind.endswith("_output") and isinstance(call or item.get("id"), str):
        output = item.get("output")
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        return {"type": "function_call_output", "call_id": call or item["id"], "output": text}
    receipt.ignore("input[]", kind)
    return None
