"""Chats as clients of the field write them, in the form that the types of schema.py take."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.elsewhere import HONOURED, TEMPLATE_VARIABLES
from aegaeon_gateway.request.open_parts import arguments_of, texts_of
from aegaeon_gateway.request.receipt import Receipt
from aegaeon_proto import sampling

Json = dict[str, Any]
_TEXTS = ("name", "tool_call_id", "reasoning_content", "reasoning", "refusal")


def adapt_completion(body: Json, receipt: Receipt) -> None:
    """Raises InvalidRequestError."""
    _rename(body)
    if body.get("max_tokens") == -1:
        del body["max_tokens"]  # LM Studio's and llama.cpp's word for no limit
    if isinstance(options := body.get("stream_options"), dict):
        leave_hints(options, {"include_obfuscation": (False,)}, "stream_options", receipt)
    least_top_p(body)


def leave_hints(options: Json, hints: Mapping[str, Collection[Any]], path: str, receipt: Receipt) -> None:
    """Leave out hints whose value asks for what is not there."""
    for name, taken in hints.items():
        if options.get(name) is not None and options[name] not in taken:
            del options[name]
            receipt.ignore(f"{path}.{name}")


def least_top_p(body: Json) -> None:
    """0 is of the likeliest token alone, as the least value is."""
    if body.get("top_p") == 0 and body["top_p"] is not False:
        body["top_p"] = sampling.TOP_P.low


def adapt_chat(body: Json, receipt: Receipt) -> None:
    """Raises InvalidRequestError."""
    adapt_completion(body, receipt)
    _variables(body)
    _reasoning(body, receipt)
    if body.get("logprobs") in (0, 1):
        body["logprobs"] = bool(body["logprobs"])
    _response_format(body)
    adapt_messages(body, receipt)


def adapt_messages(body: Json, receipt: Receipt) -> None:
    """Messages and tools alone."""
    if isinstance(messages := body.get("messages"), list):
        last = max((at for at, message in enumerate(messages) if _role(message) == "assistant"), default=-1)
        _continue(body, messages)
        for at, message in enumerate(messages):
            if isinstance(message, dict):
                _message(message, receipt, newest=at > last and _role(message) == "user")
    if isinstance(tools := body.get("tools"), list):
        body["tools"] = [tool for at, tool in enumerate(tools) if _kept(tool, at, receipt)]


def _rename(body: Json) -> None:
    for name, ours in HONOURED.items():
        if (value := body.pop(name, None)) is None:
            continue
        if body.get(ours) is not None:
            message = f"{name} and {ours} say the same; send one"
            raise InvalidRequestError(message, param=name, code="invalid_value")
        body[ours] = value


def _variables(body: Json) -> None:
    """Make variables of the template of parameters that other servers take at the top."""
    variables = {name: body.pop(name) for name in TEMPLATE_VARIABLES if name in body}
    if isinstance(thinking := body.get("thinking"), dict) and thinking.get("type") in ("enabled", "disabled"):
        variables["enable_thinking"] = body.pop("thinking")["type"] == "enabled"
    kwargs = body.get("chat_template_kwargs") or {}
    if variables and isinstance(kwargs, dict):
        body["chat_template_kwargs"] = {**variables, **kwargs}


def _reasoning(body: Json, receipt: Receipt) -> None:
    """OpenRouter's object, and its names here."""
    if not isinstance(options := body.get("reasoning"), dict):
        return
    del body["reasoning"]
    exclude = options.get("exclude")
    ours = {
        "reasoning_effort": options.get("effort"),
        "thinking_token_budget": options.get("max_tokens"),
        "include_reasoning": None if exclude is None else not exclude,
    }
    for name, value in ours.items():
        if value is not None:
            body.setdefault(name, value)
    if options.get("enabled") is False:
        body.setdefault("reasoning_effort", "none")
    for name in options.keys() - {"effort", "max_tokens", "exclude", "enabled"}:
        receipt.ignore(f"reasoning.{name}")


def _response_format(body: Json) -> None:
    """llama.cpp and Together give a schema beside json_object."""
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_object" and isinstance(form.get("schema"), dict):
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": form["schema"]}}


def _continue(body: Json, messages: list[Any]) -> None:
    """Mistral and DeepSeek mark a last message that is to be continued."""
    if messages and _role(messages[-1]) == "assistant" and messages[-1].pop("prefix", None) is True:
        body.setdefault("add_generation_prompt", False)
        body.setdefault("continue_final_message", True)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _message(message: Json, receipt: Receipt, *, newest: bool) -> None:
    if message.get("role") == "function":
        message["role"] = "tool"
    if message.get("content") is not None or message.get("role") != "assistant":
        message["content"] = texts_of(message.get("content"), "messages[].content", receipt, newest=newest)
    for name in _TEXTS:
        if not isinstance(message.get(name), str | None):
            del message[name]
            receipt.ignore(f"messages[].{name}")
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" and calls is not None:
        del message["tool_calls"]
        receipt.ignore("messages[].tool_calls")
    if isinstance(older := message.pop("function_call", None), dict) and not calls:
        message["tool_calls"] = calls = [{"function": older}]
    if message.pop("audio", None) is not None:
        receipt.ignore("messages[].audio")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            _call(call)


def _call(call: Json) -> None:
    if isinstance(custom := call.pop("custom", None), dict):
        call["function"] = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    call["type"] = "function"
    if isinstance(function := call.get("function"), dict):
        function["arguments"] = arguments_of(function.get("arguments"))


def _kept(tool: Any, at: int, receipt: Receipt) -> bool:
    """True when it can be called; a function may be written as the Responses API has it."""
    if not isinstance(tool, dict):
        return True
    kind = tool.get("type") or "function"
    if kind != "function":
        receipt.ignore(f"tools[{at}]", str(kind))
        return False
    tool["type"] = kind
    if "function" not in tool and "name" in tool:
        tool["function"] = {name: tool.pop(name) for name in list(tool) if name != "type"}
    return True
