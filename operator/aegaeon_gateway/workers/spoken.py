"""Tools and reasoning of a chat: what its template gets, and how its answer is read."""

from __future__ import annotations

import json
from typing import Any

from msgspec import structs

from aegaeon_gateway.dialects.families import FORCED, Dialect
from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request import tool_schema
from aegaeon_gateway.request.bodies import name_at
from aegaeon_gateway.request.messages import NamedTool
from aegaeon_gateway.request.receipt import Receipt
from aegaeon_gateway.request.schema import ChatRequest, CompletionRequest
from aegaeon_gateway.request.structured import Form, form_of
from aegaeon_gateway.request.subschemas import Schema
from aegaeon_gateway.workers.model import ModelText
from aegaeon_gateway.workers.wire import Job
from aegaeon_proto.engine.sampling import ConstraintKind
from aegaeon_proto.v1.model_pb2 import ReasoningBudget, TokenRun

Request = ChatRequest | CompletionRequest


def without_hints(request: ChatRequest, job: Job, text: ModelText, receipt: Receipt | None) -> ChatRequest:
    """The chat without what it suggests of thoughts to a model that has none; the same where it is strict."""
    if receipt is None:
        return request
    unknown: dict[str, None] = {}
    if request.reasoning_effort not in (None, "none") and not _knows_effort(text):
        unknown["reasoning_effort"] = None
    if request.limits_reasoning and job.endpoint in ("messages", "count_tokens"):
        # clients of Anthropic's API ask for thoughts whatever the model: a budget is the most that it may think
        marks = text.dialect.overridden(job.calls, job.reasoning).reasoning_marks
        if marks is None or form_of(request) is not None or request.forces_tools:
            unknown["thinking_token_budget"] = None
    for name in unknown:
        receipt.ignore(name_at(job.endpoint, name))
    return structs.replace(request, **unknown) if unknown else request


def dialect_of(request: Request, job: Job, text: ModelText) -> Dialect:
    """How the answer is to be read: reasoning always, calls where they may be made. Raises InvalidRequestError."""
    dialect = text.dialect.overridden(job.calls, job.reasoning)
    if request.limits_reasoning and dialect.reasoning_marks is None:
        raise _refused("thinking_token_budget", "how this model marks its reasoning is not known")
    if isinstance(request, CompletionRequest):
        return Dialect("", "")
    _check(request, dialect, text)
    if request.forces_tools:
        return Dialect(FORCED, "")
    if form_of(request) is not None:
        return Dialect("", "")  # from its first token on the output has that form
    return Dialect(dialect.tools if request.callable_tools else "", dialect.reasoning)


def constrained(request: Request) -> Form | None:
    """The form that the output must have: as the request says, or calls of tools. Raises InvalidRequestError."""
    form = form_of(request)
    if isinstance(request, ChatRequest) and request.forces_tools:
        if form is not None:
            raise _refused("tool_choice", f"{form.param} says what the output must be; send one of them")
        form = Form("tool_choice", ConstraintKind.JSON_SCHEMA, _schema_of_calls(request))
    if form is not None and request.limits_reasoning:
        raise _refused("thinking_token_budget", f"an output that {form.param} describes has no reasoning")
    return form


def _schema_of_calls(request: ChatRequest) -> str:
    try:
        return json.dumps(_calls(request))
    except RecursionError as error:
        raise _refused("tools", "a schema of parameters is nested too deeply") from error


def _calls(request: ChatRequest) -> Schema:
    tools = [tool_schema.Tool(tool.function.name, tool.function.parameters) for tool in request.tools or ()]
    if not tools:
        raise _refused("tool_choice", "there are no tools to choose from")
    if not isinstance(request.tool_choice, NamedTool):
        if (allowed := request.allowed_tools) is not None:
            tools = [tool for tool in tools if tool.name in allowed.names]
        return tool_schema.calls_schema(tools, parallel=request.parallel_tool_calls is not False)
    name = request.tool_choice.function.name
    named = next((tool for tool in tools if tool.name == name), None)
    if named is None:
        raise _refused("tool_choice", f"no tool is called {name!r}")
    return tool_schema.call_schema(named)


def budget_of(
    request: ChatRequest | CompletionRequest, job: Job, inside: bool, text: ModelText
) -> ReasoningBudget | None:
    """The budget of a request for engines. `inside`: the prompt ends within it."""
    marks = text.dialect.overridden(job.calls, job.reasoning).reasoning_marks
    if marks is None or not request.limits_reasoning:
        return None
    opening, closing = (TokenRun(tokens=text.encode(mark, special=False)) for mark in marks)
    tokens = request.thinking_token_budget or 0
    return ReasoningBudget(tokens=tokens, opening=opening, closing=closing, inside=inside)


def variables_of(request: ChatRequest) -> dict[str, Any]:
    """Variables of the template beside messages and tools; `chat_template_kwargs` come before other parameters."""
    variables: dict[str, Any] = {}
    if request.documents:
        variables["documents"] = request.documents
    if request.reasoning_effort is not None:
        variables["reasoning_effort"] = request.reasoning_effort
        variables["enable_thinking"] = request.reasoning_effort != "none"
    return {**variables, **(request.chat_template_kwargs or {})}


def _check(request: ChatRequest, dialect: Dialect, text: ModelText) -> None:
    if (allowed := request.allowed_tools) is not None:
        known = {tool.function.name for tool in request.tools or ()}
        for name in sorted(allowed.names - known):
            raise _refused("tool_choice", f"no tool is called {name!r}")
    if request.callable_tools and not text.knows("tools"):
        raise _refused("tools", "this model's chat template does not know of them")
    if request.callable_tools and not request.forces_tools and not dialect.tools:
        raise _refused("tools", "how this model writes calls is not known; the ModelPool may say so by toolCalls")
    if request.reasoning_effort not in (None, "none") and not _knows_effort(text):
        raise _refused("reasoning_effort", "this model's chat template knows neither it nor enable_thinking")


def _knows_effort(text: ModelText) -> bool:
    return text.knows("reasoning_effort") or text.knows("enable_thinking")


def _refused(param: str, reason: str) -> InvalidRequestError:
    message = f"{param} is not supported here: {reason}"
    return InvalidRequestError(message, param=param, code="unsupported_parameter")
