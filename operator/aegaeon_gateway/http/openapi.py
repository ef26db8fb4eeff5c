"""The gateway's own OpenAPI description: requests from the types that check them, answers as `render` writes them.

`_requests` alone knows which library the request types are of.
"""

from __future__ import annotations

import json
from functools import cache

import msgspec

from aegaeon_gateway.http import openapi_batches, openapi_messages, openapi_responses
from aegaeon_gateway.http.endpoints import ENDPOINTS
from aegaeon_gateway.http.openapi_shapes import COUNT, IDS, STRING, Json, fields, nullable
from aegaeon_gateway.request.batch_schema import BatchRequest
from aegaeon_gateway.request.parse import KNOWN
from aegaeon_gateway.request.pooled import BODIES
from aegaeon_gateway.request.responses_schema import ResponsesRequest
from aegaeon_gateway.request.schema import ChatRequest, CompletionRequest, accepted
from aegaeon_gateway.request.texts import DetokenizeRequest

_COMPONENTS = "#/components/schemas/"
_FINISH: Json = {"enum": ["stop", "length", "tool_calls", None]}
_STOP: Json = {"anyOf": [STRING, COUNT, {"type": "null"}]}
_SAID: Json = {"type": "array", "items": {"anyOf": [{"type": "object"}, {"type": "null"}]}}
_ERRORS = {
    "400": "The request is not well-formed, or a parameter is wrong; `param` names it.",
    "401": "No key where one is needed, or a wrong one.",
    "403": "The gateway listens on localhost, and the request names another host or comes from another site's page.",
    "404": "No such route or model, none that this key may use, or one that the engines cannot run.",
    "405": "No such method here; `Allow` names those that there are.",
    "408": "Header or body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is no application/json in UTF-8, or is compressed.",
    "417": "Expectations other than 100-continue are not met.",
    "429": "A quota is used up, or there are too many connections from this address; see `Retry-After`.",
    "431": "The header is too large.",
    "500": "The engine or the gateway failed on this request.",
    "503": "No room at present (`Retry-After` says when to come back), or the model cannot be served.",
    "505": "Not HTTP/1.0 or HTTP/1.1.",
}


@cache
def description() -> bytes:
    """The document of GET /openapi.json."""
    schemas = _requests() | _answers()
    for module in (openapi_messages, openapi_responses, openapi_batches):
        schemas |= module.answers()
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Aegaeon gateway", "version": "1", "description": "OpenAI's API of an Aegaeon pool."},
        "paths": _completions() | _messages_api() | _responses_api() | _pooled() | _files() | _batches() | _pages(),
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}, {}],
    }
    return json.dumps(document).encode()  # orjson refuses the bounds of a seed


def _completions() -> Json:
    completions = {"requestBody": _body("CompletionRequest"), "responses": _completion_answers("Completion")}
    chat = {"requestBody": _body("ChatRequest"), "responses": _completion_answers("ChatCompletion")}
    return {
        "/v1/chat/completions": {"post": _operation("createChatCompletion", "Answer a chat.", chat)},
        "/v1/completions": {"post": _operation("createCompletion", "Continue texts.", completions)},
    }


def _messages_api() -> Json:
    create = _operation("createMessage", "Answer a chat, as Anthropic's Messages API.", _messages("Messages"))
    count = _operation("countTokens", "The length of a message's prompt.", _messages("Count", streamed=False))
    return {"/v1/messages": {"post": create}, "/v1/messages/count_tokens": {"post": count}}


def _responses_api() -> Json:
    answers = _completion_answers("Response", "named by their `type`")
    create = {"requestBody": _body("ResponsesRequest"), "responses": answers}
    named = {"parameters": [_id({"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"})]}
    kept = {
        "get": _operation("getResponse", "A response that is kept.", {**named, **_get("Response")}),
        "delete": _operation("deleteResponse", "Keep it no longer.", {**named, **_get("DeletedResponse")}),
    }
    cancel = _operation("cancelResponse", "End what is generated in the background.", {**named, **_get("Response")})
    items = _operation("listInputItems", "What came before its output.", {**named, **_get("ItemList")})
    return {
        "/v1/responses": {"post": _operation("createResponse", "Answer a chat, as OpenAI's Responses API.", create)},
        "/v1/responses/{id}": kept,
        "/v1/responses/{id}/input_items": {"get": items},
        "/v1/responses/{id}/cancel": {"post": cancel},
    }


def _pooled() -> Json:
    paths = {}
    for name, body in BODIES.items():
        content = _posted(body.kind.__name__.removesuffix("Request"))
        for path, version in zip(ENDPOINTS[name].paths, ("", "V1"), strict=False):
            paths[path] = {"post": _operation(f"{body.operation}{version}", body.summary, content)}
    return paths


def _files() -> Json:
    form = {"required": True, "content": {"multipart/form-data": {"schema": openapi_batches.FORM}}}
    named = {"parameters": [_id(openapi_batches.ID)]}
    content = {"application/octet-stream": {"schema": STRING}}
    download = {"responses": {"200": {"description": "The file as it is.", "content": content}, **_errors()}}
    return {
        "/v1/files": {
            "post": _operation("createFile", "Upload a file.", {"requestBody": form, **_get("File")}),
            "get": _operation("listFiles", "Your files, the newest first.", _get("FileList")),
        },
        "/v1/files/{id}": {
            "get": _operation("getFile", "One file.", {**named, **_get("File")}),
            "delete": _operation("deleteFile", "Keep it no longer.", {**named, **_get("DeletedFile")}),
        },
        "/v1/files/{id}/content": {"get": _operation("getFileContent", "What is in a file.", {**named, **download})},
    }


def _batches() -> Json:
    named = {"parameters": [_id(openapi_batches.ID)]}
    create = {"requestBody": _body("BatchRequest"), **_get("Batch")}
    return {
        "/v1/batches": {
            "post": _operation("createBatch", "Answer the requests of a file.", create),
            "get": _operation("listBatches", "Your batches, the newest first.", _get("BatchList")),
        },
        "/v1/batches/{id}": {"get": _operation("getBatch", "One batch.", {**named, **_get("Batch")})},
        "/v1/batches/{id}/cancel": {
            "post": _operation("cancelBatch", "End a batch; what is answered stays.", {**named, **_get("Batch")})
        },
    }


def _pages() -> Json:
    """Paths that no engine serves."""
    model = {"parameters": [_id({"type": "string", "minLength": 1})], **_get("Model")}
    return {
        "/v1/models": {"get": _operation("listModels", "The models that the key may use.", _get("ModelList"))},
        "/v1/models/{id}": {"get": _operation("getModel", "One model.", model)},
        "/tokenize": {"post": _operation("tokenize", "The tokens of a text, or of a chat.", _posted("Tokenize"))},
        "/detokenize": {"post": _operation("detokenize", "The text of tokens.", _posted("Detokenize"))},
        "/version": {"get": _operation("version", "The gateway's version.", _get("Version"))},
        "/health": {"get": _operation("health", "Whether requests are served.", {"responses": _health()})},
    }


def _id(schema: Json) -> Json:
    return {"name": "id", "in": "path", "required": True, "schema": schema}


def _requests() -> dict[str, Json]:
    """The schemas of request bodies and what they name, with what their types cannot say."""
    kinds = [accepted(kind, known) for kind, known in KNOWN.items()]
    every = [*kinds, BatchRequest, DetokenizeRequest]
    _, schemas = msgspec.json.schema_components(every, ref_template=_COMPONENTS + "{name}")
    for kind, known in KNOWN.items():
        properties = schemas[kind.__name__]["properties"]
        properties |= {name: {"enum": list(refused.allowed)} for name, refused in known.refused.items()}
    for kind in (ChatRequest, CompletionRequest, ResponsesRequest):
        properties = schemas[kind.__name__]["properties"]
        properties["logit_bias"]["anyOf"][0]["propertyNames"] = {"pattern": "^[0-9]{1,9}$"}
        properties["seed"]["anyOf"][0] |= {"minimum": -(2**63), "exclusiveMaximum": 2**64}
    return schemas


def _answers() -> dict[str, Json]:
    usage = fields(
        prompt_tokens=COUNT,
        completion_tokens=COUNT,
        total_tokens=COUNT,
        prompt_tokens_details=fields(cached_tokens=COUNT),
        completion_tokens_details=fields(reasoning_tokens=COUNT),
    )
    error = fields(message=STRING, type=STRING, param=nullable(STRING), code=nullable(STRING))
    state = fields(phase=STRING, reason=STRING, task=nullable(STRING))
    model = fields(
        id=STRING, object={"const": "model"}, created=COUNT, owned_by=STRING, root=STRING,
        parent=nullable(STRING), max_model_len=nullable(COUNT), aegaeon=state,
    )  # fmt: skip
    return {
        "Error": fields(error=error),
        "Usage": usage,
        "ChatCompletion": _completion("chat.completion", _chat_choice()),
        "Completion": _completion("text_completion", _text_choice()),
        "TokenizeAnswer": fields(
            count=COUNT, max_model_len=COUNT, tokens=IDS, token_strs=nullable({"type": "array", "items": STRING})
        ),
        "DetokenizeAnswer": fields(prompt=STRING),
        "EmbeddingAnswer": _listed(_embedding()),
        "ScoreAnswer": _listed(fields(index=COUNT, object={"const": "score"}, score={"type": "number"})),
        "RerankAnswer": _ranking(),
        "Version": fields(version=STRING),
        "Model": model,
        "ModelList": fields(object={"const": "list"}, data={"type": "array", "items": _ref("Model")}),
        "Health": fields(status={"enum": ["ok", "starting"]}, scheduler={"enum": ["attached", "unavailable"]}),
    }


def _listed(entry: Json) -> Json:
    usage = fields(
        prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT, prompt_tokens_details={"type": "null"}
    )
    data: Json = {"type": "array", "items": entry}
    return fields(
        object={"const": "list"}, id=STRING, created=COUNT, model=STRING, data=data, usage=usage
    )  # fmt: skip


def _embedding() -> Json:
    numbers: Json = {"anyOf": [{"type": "array", "items": {"type": "number"}}, STRING]}
    return fields(object={"const": "embedding"}, index=COUNT, embedding=numbers)


def _ranking() -> Json:
    document = fields(text=STRING, multi_modal={"type": "null"})
    result = fields(index=COUNT, relevance_score={"type": "number"})
    result["properties"]["document"] = document
    usage = fields(prompt_tokens=COUNT, total_tokens=COUNT)
    return fields(id=STRING, model=STRING, usage=usage, results={"type": "array", "items": result})


def _completion(kind: str, choice: Json) -> Json:
    body = fields(
        id=STRING, object={"const": kind}, created=COUNT, model=STRING,
        choices={"type": "array", "items": choice}, usage=_ref("Usage"),
    )  # fmt: skip
    body["properties"] |= {"prompt_token_ids": IDS, "prompt_logprobs": _SAID}
    return body


def _chat_choice() -> Json:
    message = fields(role={"const": "assistant"}, content=nullable(STRING), refusal={"type": "null"})
    function = fields(name=STRING, arguments=STRING)
    call = fields(id=STRING, type={"const": "function"}, function=function)
    calls: Json = {"type": "array", "items": call}
    message["properties"] |= {"reasoning_content": nullable(STRING), "tool_calls": calls}
    likely = fields(token=STRING, logprob={"type": "number"}, bytes=nullable(IDS))
    token = {**likely, "properties": {**likely["properties"], "top_logprobs": {"type": "array", "items": likely}}}
    logprobs = {"type": "object", "properties": {"content": {"type": "array", "items": token}}}
    choice = fields(index=COUNT, message=message, logprobs=nullable(logprobs), finish_reason=_FINISH)
    choice["properties"] |= {"token_ids": IDS, "stop_reason": _STOP}
    return choice


def _text_choice() -> Json:
    numbers = {"type": "array", "items": nullable({"type": "number"})}
    likely = {"type": "object", "additionalProperties": {"type": "number"}}
    logprobs = fields(
        tokens={"type": "array", "items": STRING}, token_logprobs=numbers, text_offset=IDS,
        top_logprobs={"anyOf": [{"type": "array", "items": nullable(likely)}, {"type": "null"}]},
    )  # fmt: skip
    choice = fields(index=COUNT, text=STRING, logprobs=nullable(logprobs), finish_reason=_FINISH)
    more = {"token_ids": IDS, "prompt_token_ids": nullable(IDS), "stop_reason": _STOP, "prompt_logprobs": _SAID}
    choice["properties"] |= more
    return choice


def _ref(name: str) -> Json:
    return {"$ref": _COMPONENTS + name}


def _operation(name: str, summary: str, more: Json) -> Json:
    return {"operationId": name, "summary": summary, **more}


def _body(name: str) -> Json:
    return {"required": True, "content": {"application/json": {"schema": _ref(name)}}}


def _completion_answers(name: str, events: str = "of `data` alone", error: str = "Error") -> Json:
    content = {"application/json": {"schema": _ref(name)}, "text/event-stream": {"schema": fields(data=STRING)}}
    text = f"The answer; with `stream`, as server-sent events {events}."
    return {"200": {"description": text, "content": content}, **_errors(error)}


def _messages(kind: str, *, streamed: bool = True) -> Json:
    """An operation of Anthropic's API, whose errors have a form of their own."""
    error = "AnthropicError"
    if streamed:
        responses = _completion_answers("Message", "named by their `type`", error)
    else:
        responses = {"200": _answer("The answer.", "TokenCount"), **_errors(error)}
    return {"requestBody": _body(f"{kind}Request"), "responses": responses}


def _posted(name: str) -> Json:
    return {"requestBody": _body(f"{name}Request"), **_get(f"{name}Answer")}


def _get(name: str) -> Json:
    return {"responses": {"200": _answer("The answer.", name), **_errors()}}


def _health() -> Json:
    starting = "The list of models is not loaded yet."
    return {"200": _answer("It serves.", "Health"), **_errors(), "503": _answer(starting, "Health")}


def _answer(text: str, name: str) -> Json:
    return {"description": text, "content": {"application/json": {"schema": _ref(name)}}}


def _errors(name: str = "Error") -> Json:
    return {status: _answer(text, name) for status, text in _ERRORS.items()}
