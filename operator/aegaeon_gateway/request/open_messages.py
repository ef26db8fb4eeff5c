"""Requests of the Messages API as clients of the field write them, in the form that anthropic_schema.py takes."""

from __future__ import annotations

from typing import Any

from aegaeon_gateway.request.anthropic_content import BLOCK_TYPES
from aegaeon_gateway.request.anthropic_schema import EFFORTS, THINKING
from aegaeon_gateway.request.open_chat import least_top_p, leave_hints
from aegaeon_gateway.request.open_parts import texts_of
from aegaeon_gateway.request.receipt import Receipt

Json = dict[str, Any]
_TOOL_HINTS = {"defer_loading": (False,), "allowed_callers": (["direct"], []), "input_examples": ([],)}


def adapt_message(body: Json, receipt: Receipt) -> None:
    least_top_p(body)
    if isinstance(config := body.get("output_config"), dict):
        leave_hints(config, {"effort": EFFORTS}, "output_config", receipt)
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") not in THINKING:
        body["thinking"] = {"type": "adaptive"}
        receipt.ignore("thinking.type")
    if isinstance(body.get("system"), list):
        body["system"] = _texts(body["system"], "system", receipt)
    if isinstance(messages := body.get("messages"), list):
        last = max((at for at, message in enumerate(messages) if _role(message) == "assistant"), default=-1)
        for at, message in enumerate(messages):
            if isinstance(message, dict) and isinstance(message.get("content"), list):
                message["content"] = _blocks(message, receipt, newest=at > last)
    if isinstance(tools := body.get("tools"), list):
        body["tools"] = [tool for at, tool in enumerate(tools) if _kept(tool, at, receipt)]


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _kept(tool: Any, at: int, receipt: Receipt) -> bool:
    """True when it has a schema; tools that Anthropic runs, or knows the schema of, have none."""
    if not isinstance(tool, dict):
        return True
    kind = tool.get("type") or "custom"
    if kind != "custom":
        receipt.ignore(f"tools[{at}]", str(kind))
        return False
    leave_hints(tool, _TOOL_HINTS, "tools[]", receipt)
    return True


def _blocks(message: Json, receipt: Receipt, *, newest: bool) -> list[Any]:
    """The blocks that a message of its role may have, and texts for what is omitted."""
    role = str(message.get("role"))
    theirs = BLOCK_TYPES.get(role, ())
    kept: list[Any] = []
    for block in message["content"]:
        kind = block.get("type", "text") if isinstance(block, dict) else "text"
        if kind in theirs and kind != "text":
            kept.append(_block(block, receipt))
        elif kind == "text" or (role == "user" and kind not in _of_answers):
            kept += _texts([block], "messages[].content", receipt, newest=newest)
        else:
            receipt.ignore("messages[].content[]", str(kind))
    return kept


_of_answers = tuple(kind for kind in BLOCK_TYPES["assistant"] if kind != "text")


def _block(block: Json, receipt: Receipt) -> Json:
    match block["type"]:
        case "tool_result" if not isinstance(block.get("content"), str | None):
            block["content"] = _texts(block["content"], "messages[].content[].content", receipt)
        case "tool_use" if not isinstance(block.get("input"), dict):
            value = block.get("input")
            block["input"] = {} if value in (None, "") else {"input": value}
    return block


def _texts(content: Any, path: str, receipt: Receipt, *, newest: bool = False) -> list[Any]:
    made: list[Any] = texts_of(content, path, receipt, newest=newest)
    for part in made:
        if isinstance(part, dict) and part.get("type") == "text" and part.get("citations"):
            del part["citations"]
            receipt.ignore(f"{path}[].citations")
    return made
