"""The gateway's own OpenAPI description: requests from the types that check them, answers as `render` writes them.

`_requests` alone knows which library the request types are of.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec

from aegaeon_gateway.request.parameters import REFUSED
from aegaeon_gateway.request.pooled import EmbeddingRequest, RerankRequest, ScoreRequest
from aegaeon_gateway.request.schema import ChatRequest, CompletionRequest, accepted
from aegaeon_gateway.request.texts import DetokenizeRequest, TokenizeRequest

Json = dict[str, Any]

_COMPONENTS = "#/components/schemas/"
_STRING: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_IDS: Json = {"type": "array", "items": _COUNT}
_FINISH: Json = {"enum": ["stop", "length", "tool_calls", None]}
_STOP: Json = {"anyOf": [_STRING, _COUNT, {"type": "null"}]}
_SAID: Json = {"type": "array", "items": {"anyOf": [{"type": "object"}, {"type": "null"}]}}
_ERRORS = {
    "400": "The request is not well-formed, or a parameter is wrong; `param` names it.",
    "401": "No key where one is needed, or a wrong one.",
    "403": "The gateway listens on localhost, and the request names another host or comes from another site's page.",
    "404": "No such route or model, or none that this key may use.",
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
    completions = {"requestBody": _body("CompletionRequest"), "responses": _completion_answers("Completion")}
    chat = {"requestBody": _body("ChatRequest"), "responses": _completion_answers("ChatCompletion")}
    model_id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    ranked = _operation("rerank", "Documents, the most relevant for a query first.", _posted("Rerank"))
    scored = _operation("score", "How relevant documents are.", _posted("Score"))
    paths = {
        "/v1/embeddings": {"post": _operation("createEmbedding", "Embed texts.", _posted("Embedding"))},
        "/rerank": {"post": ranked},
        "/v1/rerank": {"post": {**ranked, "operationId": "rerankV1"}},
        "/score": {"post": scored},
        "/v1/score": {"post": {**scored, "operationId": "scoreV1"}},
        "/v1/chat/completions": {"post": _operation("createChatCompletion", "Answer a chat.", chat)},
        "/v1/completions": {"post": _operation("createCompletion", "Continue texts.", completions)},
        "/v1/models": {"get": _operation("listModels", "The models that the key may use.", _get("ModelList"))},
        "/v1/models/{id}": {
            "get": _operation("getModel", "One model.", {"parameters": [model_id], **_get("Model")}),
        },
        "/tokenize": {"post": _operation("tokenize", "The tokens of a text, or of a chat.", _posted("Tokenize"))},
        "/detokenize": {"post": _operation("detokenize", "The text of tokens.", _posted("Detokenize"))},
        "/version": {"get": _operation("version", "The gateway's version.", _get("Version"))},
        "/health": {"get": _operation("health", "Whether requests are served.", {"responses": _health()})},
    }
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Aegaeon gateway", "version": "1", "description": "OpenAI's API of an Aegaeon pool."},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}, {}],
    }
    return json.dumps(document).encode()  # orjson refuses the bounds of a seed


def _requests() -> dict[str, Json]:
    """The schemas of both request bodies and what they name, with what their types cannot say."""
    kinds = [accepted(kind) for kind in (ChatRequest, CompletionRequest)]
    every = [*kinds, TokenizeRequest, DetokenizeRequest, EmbeddingRequest, RerankRequest, ScoreRequest]
    _, schemas = msgspec.json.schema_components(every, ref_template=_COMPONENTS + "{name}")
    for kind in kinds:
        properties = schemas[kind.__name__]["properties"]
        properties["logit_bias"]["anyOf"][0]["propertyNames"] = {"pattern": "^[0-9]{1,9}$"}
        properties["seed"]["anyOf"][0] |= {"minimum": -(2**63), "exclusiveMaximum": 2**64}
        properties |= {name: {"enum": list(refused.allowed)} for name, refused in REFUSED.items()}
    return schemas


def _answers() -> dict[str, Json]:
    usage = _object(
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        total_tokens=_COUNT,
        prompt_tokens_details=_object(cached_tokens=_COUNT),
    )
    error = _object(message=_STRING, type=_STRING, param=_or_null(_STRING), code=_or_null(_STRING))
    state = _object(phase=_STRING, reason=_STRING, task=_or_null(_STRING))
    model = _object(
        id=_STRING, object={"const": "model"}, created=_COUNT, owned_by=_STRING, root=_STRING,
        parent={"type": "null"}, max_model_len=_or_null(_COUNT), aegaeon=state,
    )  # fmt: skip
    return {
        "Error": _object(error=error),
        "Usage": usage,
        "ChatCompletion": _completion("chat.completion", _chat_choice()),
        "Completion": _completion("text_completion", _text_choice()),
        "TokenizeAnswer": _object(
            count=_COUNT, max_model_len=_COUNT, tokens=_IDS, token_strs=_or_null({"type": "array", "items": _STRING})
        ),
        "DetokenizeAnswer": _object(prompt=_STRING),
        "EmbeddingAnswer": _listed(_embedding()),
        "ScoreAnswer": _listed(_object(index=_COUNT, object={"const": "score"}, score={"type": "number"})),
        "RerankAnswer": _ranking(),
        "Version": _object(version=_STRING),
        "Model": model,
        "ModelList": _object(object={"const": "list"}, data={"type": "array", "items": _ref("Model")}),
        "Health": _object(status={"enum": ["ok", "starting"]}, scheduler={"enum": ["attached", "unavailable"]}),
    }


def _listed(entry: Json) -> Json:
    usage = _object(
        prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT, prompt_tokens_details={"type": "null"}
    )
    data: Json = {"type": "array", "items": entry}
    return _object(
        object={"const": "list"}, id=_STRING, created=_COUNT, model=_STRING, data=data, usage=usage
    )  # fmt: skip


def _embedding() -> Json:
    numbers: Json = {"anyOf": [{"type": "array", "items": {"type": "number"}}, _STRING]}
    return _object(object={"const": "embedding"}, index=_COUNT, embedding=numbers)


def _ranking() -> Json:
    document = _object(text=_STRING, multi_modal={"type": "null"})
    result = _object(index=_COUNT, document=document, relevance_score={"type": "number"})
    usage = _object(prompt_tokens=_COUNT, total_tokens=_COUNT)
    return _object(id=_STRING, model=_STRING, usage=usage, results={"type": "array", "items": result})


def _completion(kind: str, choice: Json) -> Json:
    whole = _object(
        id=_STRING, object={"const": kind}, created=_COUNT, model=_STRING,
        choices={"type": "array", "items": choice}, usage=_ref("Usage"),
    )  # fmt: skip
    whole["properties"] |= {"prompt_token_ids": _IDS, "prompt_logprobs": _SAID}
    return whole


def _chat_choice() -> Json:
    message = _object(role={"const": "assistant"}, content=_or_null(_STRING), refusal={"type": "null"})
    function = _object(name=_STRING, arguments=_STRING)
    call = _object(id=_STRING, type={"const": "function"}, function=function)
    calls: Json = {"type": "array", "items": call}
    message["properties"] |= {"reasoning_content": _or_null(_STRING), "tool_calls": calls}
    likely = _object(token=_STRING, logprob={"type": "number"}, bytes=_or_null(_IDS))
    token = {**likely, "properties": {**likely["properties"], "top_logprobs": {"type": "array", "items": likely}}}
    logprobs = {"type": "object", "properties": {"content": {"type": "array", "items": token}}}
    choice = _object(index=_COUNT, message=message, logprobs=_or_null(logprobs), finish_reason=_FINISH)
    choice["properties"] |= {"token_ids": _IDS, "stop_reason": _STOP}
    return choice


def _text_choice() -> Json:
    numbers = {"type": "array", "items": _or_null({"type": "number"})}
    likely = {"type": "object", "additionalProperties": {"type": "number"}}
    logprobs = _object(
        tokens={"type": "array", "items": _STRING}, token_logprobs=numbers, text_offset=_IDS,
        top_logprobs={"anyOf": [{"type": "array", "items": _or_null(likely)}, {"type": "null"}]},
    )  # fmt: skip
    choice = _object(index=_COUNT, text=_STRING, logprobs=_or_null(logprobs), finish_reason=_FINISH)
    more = {"token_ids": _IDS, "prompt_token_ids": _or_null(_IDS), "stop_reason": _STOP, "prompt_logprobs": _SAID}
    choice["properties"] |= more
    return choice


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Json:
    return {"$ref": _COMPONENTS + name}


def _operation(name: str, summary: str, more: Json) -> Json:
    return {"operationId": name, "summary": summary, **more}


def _body(name: str) -> Json:
    return {"required": True, "content": {"application/json": {"schema": _ref(name)}}}


def _completion_answers(name: str) -> Json:
    content = {"application/json": {"schema": _ref(name)}, "text/event-stream": {"schema": _object(data=_STRING)}}
    return {
        "200": {"description": "The answer; with `stream`, as server-sent events of `data` alone.", "content": content},
        **_errors(),
    }


def _posted(name: str) -> Json:
    return {"requestBody": _body(f"{name}Request"), **_get(f"{name}Answer")}


def _get(name: str) -> Json:
    return {"responses": {"200": _answer("The answer.", name), **_errors()}}


def _health() -> Json:
    starting = "The list of models is not loaded yet."
    return {"200": _answer("It serves.", "Health"), **_errors(), "503": _answer(starting, "Health")}


def _answer(text: str, name: str) -> Json:
    return {"description": text, "content": {"application/json": {"schema": _ref(name)}}}


def _errors() -> Json:
    return {status: _answer(text, "Error") for status, text in _ERRORS.items()}
