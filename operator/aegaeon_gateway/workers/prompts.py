"""From a request to token ids: rendered by the chat template, tokenized, cut to size, checked against the model."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from aegaeon_gateway.dialects.families import CALL_ID_CHARACTERS, Dialect, ends_inside
from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.messages import Message
from aegaeon_gateway.request.schema import ChatRequest, CommonRequest, CompletionRequest
from aegaeon_gateway.workers.bounds import BYTES_PER_TOKEN
from aegaeon_gateway.workers.model import ModelText
from aegaeon_gateway.workers.spoken import variables_of

Request = ChatRequest | CompletionRequest


@dataclass(frozen=True, slots=True)
class Context:
    """How long prompt and output may be together, in tokens; 0: unknown."""

    length: int

    def check_text(self, text: str, param: str) -> str:
        """Refuse a text that cannot fit before it is tokenized. Raises InvalidRequestError."""
        if self.length and len(text) > (most := BYTES_PER_TOKEN * self.length):
            message = (
                f"The prompt has {len(text)} characters, but this model's maximum context length is {self.length} "
                f"tokens, for which {most} are allowed."
            )
            raise InvalidRequestError(message, param=param, code="context_length_exceeded")
        return text

    def check_messages(self, count: int) -> None:
        """A message is a token at least. Raises InvalidRequestError."""
        if self.length and count > self.length:
            message = f"{count} messages do not fit this model's maximum context length of {self.length} tokens."
            raise InvalidRequestError(message, param="messages", code="context_length_exceeded")


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts, and the text of each where an answer repeats it (else ""). `reasoning`: it ends within reasoning."""

    tokens: list[array[int]]
    texts: list[str]
    reasoning: bool = False


def prompts_of(
    request: Request, dialect: Dialect, text: ModelText, context: Context, stage: Callable[[str], None]
) -> Prompts:
    """Tells `stage` what comes next. Raises InvalidRequestError."""
    if isinstance(request, ChatRequest):
        return _chat(request, dialect, text, context, stage)
    stage("tokenizing")
    tokens = [_completion(prompt, request, text, context) for prompt in request.prompts]
    if not request.echo:
        return Prompts(tokens, [""])
    pairs = zip(request.prompts, tokens, strict=True)
    return Prompts(tokens, [_text_of(prompt, request, text, ids) for prompt, ids in pairs])


def check_in_vocabulary(param: str, ids: Sequence[int], size: int) -> None:
    """Raises InvalidRequestError."""
    if (largest := max(ids, default=-1)) >= size:
        message = f"{param}: token {largest} is outside the vocabulary of {size} tokens"
        raise InvalidRequestError(message, param=param, code="invalid_value")


def _chat(
    request: ChatRequest, dialect: Dialect, text: ModelText, context: Context, stage: Callable[[str], None]
) -> Prompts:
    context.check_messages(len(request.messages))
    stage("rendering")
    rendered = text.render(
        list(messages_of(request.messages, text.dialect.tools)),
        generation_prompt=request.generation_prompt,
        continued=bool(request.continue_final_message),
        tools=[tool.for_template() for tool in request.callable_tools],
        variables=variables_of(request),
    )
    stage("tokenizing")
    if request.truncate_prompt_tokens is None:
        context.check_text(rendered, "messages")
    tokens = _cut(text.encode(rendered, special=bool(request.add_special_tokens)), request, context)
    return Prompts([tokens], [_echoed(request)], ends_inside(dialect, rendered))


def messages_of(messages: Sequence[Message], family: str) -> Iterator[dict[str, Any]]:
    """As the template gets them. Ids of calls that another model, or a client, has made are given the family's form."""
    most = CALL_ID_CHARACTERS.get(family)
    for message in messages:
        made = message.for_template()
        if most is not None:
            for holder, name in ((made, "tool_call_id"), *((call, "id") for call in made.get("tool_calls", ()))):
                if name in holder:
                    holder[name] = _call_id(holder[name], most)
        yield made


def _call_id(id_: str, characters: int) -> str:
    """The same for a call and its result, however often it is sent."""
    if len(id_) == characters and id_.isascii() and id_.isalnum():
        return id_
    return blake2b(id_.encode(errors="surrogatepass"), digest_size=16).hexdigest()[:characters]


def _echoed(request: ChatRequest) -> str:
    """The last message, where the answer has its role."""
    last = request.messages[-1]
    return last.text if request.echo and (last.role == "assistant" or not request.generation_prompt) else ""


def _completion(prompt: str | list[int], request: CompletionRequest, text: ModelText, context: Context) -> array[int]:
    if isinstance(prompt, str):
        if request.truncate_prompt_tokens is None:
            context.check_text(prompt, "prompt")
        tokens = text.encode(prompt, special=request.add_special_tokens is not False)
    else:
        tokens = array("I", prompt)
    tokens = _cut(tokens, request, context)
    if not tokens:
        raise InvalidRequestError("prompt is empty; send at least one token", param="prompt", code="invalid_value")
    check_in_vocabulary("prompt", tokens, text.size)
    return tokens


def _text_of(prompt: str | list[int], request: CompletionRequest, text: ModelText, tokens: array[int]) -> str:
    unchanged = isinstance(prompt, str) and request.truncate_prompt_tokens is None
    return str(prompt) if unchanged else text.decode(tokens, skip_special=request.skip_special_tokens is not False)


def _cut(tokens: array[int], request: CommonRequest, context: Context) -> array[int]:
    """Cut a prompt by truncate_prompt_tokens. Raises InvalidRequestError."""
    most = request.truncate_prompt_tokens
    if most is None:
        return tokens
    if most == 0:
        message = "truncate_prompt_tokens: 0 leaves no token"
        raise InvalidRequestError(message, param="truncate_prompt_tokens", code="invalid_value")
    if most == -1:
        most = max(context.length - (request.output_limit or 1), 1) if context.length else len(tokens)
    if len(tokens) <= most:
        return tokens
    return tokens[:most] if request.truncation_side == "right" else tokens[-most:]
