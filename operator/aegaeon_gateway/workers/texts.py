"""Jobs that end in a worker: a text's tokens, and the text of tokens."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.bodies import named, parsed_chat
from aegaeon_gateway.request.parse import decoded
from aegaeon_gateway.request.receipt import Receipt
from aegaeon_gateway.request.texts import DetokenizeRequest, TokenizeRequest
from aegaeon_gateway.workers.model import ModelText
from aegaeon_gateway.workers.prompts import Context, check_in_vocabulary, messages_of, prompts_of
from aegaeon_gateway.workers.spoken import dialect_of, without_hints
from aegaeon_gateway.workers.wire import Job

Stage = Callable[[str], None]


def tokenize(job: Job, body: bytes, text: ModelText, stage: Stage, receipt: Receipt | None) -> bytes:
    """The body of an answer. Raises InvalidRequestError."""
    request = decoded(TokenizeRequest, body, receipt)
    context = Context(job.length or text.max_positions)
    if (request.prompt is None) == (request.messages is None):
        raise InvalidRequestError("Send one of prompt and messages.", param="prompt", code="invalid_value")
    if request.messages is None:
        param, content, special = "prompt", request.prompt or "", request.add_special_tokens is not False
    else:
        context.check_messages(len(request.messages))
        stage("rendering")
        param, content, special = "messages", _rendered(request, text), bool(request.add_special_tokens)
    stage("tokenizing")
    ids = text.encode(context.check_text(content, param), special=special).tolist()
    names = [text.name(token) for token in ids] if request.return_token_strs else None
    return orjson.dumps({"count": len(ids), "max_model_len": context.length, "tokens": ids, "token_strs": names})


def detokenize(job: Job, body: bytes, text: ModelText, stage: Stage, receipt: Receipt | None) -> bytes:
    """The body of an answer. Raises InvalidRequestError."""
    request = decoded(DetokenizeRequest, body, receipt)
    check_in_vocabulary("tokens", request.tokens, text.size)
    stage("tokenizing")
    return orjson.dumps({"prompt": text.decode(request.tokens, skip_special=False)})


def count(job: Job, body: bytes, text: ModelText, stage: Stage, receipt: Receipt | None) -> bytes:
    """How many tokens the prompt of a message has. Raises InvalidRequestError."""
    request = parsed_chat(job.endpoint, body, receipt=receipt).chat
    with named(job.endpoint):
        request = without_hints(request, job, text, receipt)
        dialect = dialect_of(request, job, text)
        prompts = prompts_of(request, dialect, text, Context(job.length or text.max_positions), stage)
    return orjson.dumps({"input_tokens": sum(map(len, prompts.tokens))})


def _rendered(request: TokenizeRequest, text: ModelText) -> str:
    return text.render(
        list(messages_of(request.messages or (), text.dialect.tools)),
        generation_prompt=request.add_generation_prompt is not False,
        continued=bool(request.continue_final_message),
        tools=[tool.for_template() for tool in request.tools or ()],
        variables=request.chat_template_kwargs or {},
    )
