"""One job: from a body to what is submitted, checked against the model."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.parse import parse
from aegaeon_gateway.request.prompt import pack
from aegaeon_gateway.request.schema import ChatRequest, CommonRequest, CompletionRequest
from aegaeon_gateway.request.structured import Form, constraint_of, form_of
from aegaeon_gateway.workers.bounds import BYTES_PER_TOKEN
from aegaeon_gateway.workers.model import ModelText
from aegaeon_gateway.workers.wire import Done, Job, Options
from aegaeon_proto import sampling as bounds
from aegaeon_proto.v1.model_pb2 import Constraint, Limits, Sampling

MAX_REPEATED = 256 << 10
"""characters of echoed prompts, or tokens of returned ones, in one answer: some 10 ms of the gateway's loop"""
_LENGTH_UNKNOWN = 4096  # output tokens when the model's context is unknown

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


def run(job: Job, body: bytes, text: ModelText, stage: Callable[[str], None]) -> tuple[Done, bytes]:
    """Parse, render, tokenize, check; tells `stage` what comes next. Raises InvalidRequestError."""
    stage("checking")
    request = parse(ChatRequest, body) if job.endpoint == "chat" else parse(CompletionRequest, body)
    if request.model != job.model:
        raise InvalidRequestError("The body names two models.", param="model", code="invalid_value")
    context = Context(job.length or text.max_positions)
    prompts = [""]
    if isinstance(request, ChatRequest):
        tokens = [_encode_chat(request, text, context, stage)]
    else:
        stage("tokenizing")
        tokens = [_encode_prompt(prompt, text, context) for prompt in request.prompts]
        if request.echo:
            prompts = [prompt if isinstance(prompt, str) else text.decode(prompt) for prompt in request.prompts]
    _check_repeated(request, sum(map(len, tokens)), sum(map(len, prompts)))
    _check_ids(request, text)
    packed = [pack(prompt) for prompt in tokens]
    sampling = _sampling(request, text)
    if (form := form_of(request)) is not None:
        stage("compiling")
        sampling.constraint.CopyFrom(_constraint(request, form, text))
    done = Done(
        options=_options(request),
        sampling=sampling.SerializeToString(),
        limits=[_limits(request, context, text, len(prompt)).SerializeToString() for prompt in tokens],
        tokens=[len(prompt) for prompt in tokens],
        packed=[len(prompt) for prompt in packed],
        prompts=prompts,
    )
    return done, b"".join(packed)


def _options(request: Request) -> Options:
    return Options(
        n=request.n,
        stops=request.stops,
        stream=bool(request.stream),
        include_usage=request.include_usage,
        echo=isinstance(request, CompletionRequest) and bool(request.echo),
        logprob_count=request.logprob_count,
        return_token_ids=bool(request.return_token_ids),
    )


def _encode_chat(request: ChatRequest, text: ModelText, context: Context, stage: Callable[[str], None]) -> array[int]:
    context.check_messages(len(request.messages))
    stage("rendering")
    rendered = text.render(_messages(request))
    stage("tokenizing")
    return text.encode(context.check_text(rendered, "messages"), special=False)


def _messages(request: ChatRequest) -> list[dict[str, Any]]:
    """As templates expect them; OpenAI's `developer` is what every template calls `system`."""
    messages = []
    for message in request.messages:
        role = "system" if message.role == "developer" else message.role
        named = {} if message.name is None else {"name": message.name}
        messages.append({"role": role, "content": message.text, **named})
    return messages


def _encode_prompt(prompt: str | list[int], text: ModelText, context: Context) -> array[int]:
    if isinstance(prompt, str):
        tokens = text.encode(context.check_text(prompt, "prompt"), special=True)
    else:
        tokens = array("I", prompt)
    if not tokens:
        raise InvalidRequestError("prompt is empty; send at least one token", param="prompt", code="invalid_value")
    _check_in_vocabulary("prompt", tokens, text.size)
    return tokens


def _check_repeated(request: Request, tokens: int, characters: int) -> None:
    """An answer repeats the prompts with each choice; the gateway holds all of it, and writes it at once."""
    repeated = {"echo": request.n * characters, "return_token_ids": request.n * tokens * bool(request.return_token_ids)}
    for param, count in repeated.items():
        if count > MAX_REPEATED:
            message = (
                f"{param}: the answer would repeat {count} {'characters' if param == 'echo' else 'tokens'} of prompts; "
                f"{MAX_REPEATED} are allowed"
            )
            raise InvalidRequestError(message, param=param, code="invalid_value")


def _check_ids(request: CommonRequest, text: ModelText) -> None:
    _check_in_vocabulary("logit_bias", [int(key) for key in request.logit_bias or ()], text.size)
    _check_in_vocabulary("stop_token_ids", request.stop_token_ids or (), text.size)


def _check_in_vocabulary(param: str, ids: Sequence[int], size: int) -> None:
    if (largest := max(ids, default=-1)) >= size:
        message = f"{param}: token {largest} is outside the vocabulary of {size} tokens"
        raise InvalidRequestError(message, param=param, code="invalid_value")


def _sampling(request: Request, text: ModelText) -> Sampling:
    """What the client says, else what the model's generation_config.json says, else OpenAI's defaults.

    Judged as the engine will get it, in float32. Raises InvalidRequestError.
    """
    seed = secrets.randbits(63) if request.seed is None else request.seed % 2**64
    default = text.defaults.get

    def said(value: float | None, name: str, otherwise: float) -> float:
        return default(name, otherwise) if value is None else value

    sampling = Sampling(
        temperature=said(request.temperature, "temperature", 1.0),
        top_p=said(request.top_p, "top_p", 1.0),
        top_k=max(int(said(request.top_k, "top_k", 0)), 0),
        min_p=said(request.min_p, "min_p", 0.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=said(request.repetition_penalty, "repetition_penalty", 1.0),
        seed=seed,
        logit_bias={int(key): bias for key, bias in (request.logit_bias or {}).items()},
        logprobs=request.logprob_count,
    )
    if (fault := bounds.fault(sampling)) is not None:
        raise InvalidRequestError(fault.message, param=fault.param, code="invalid_value")
    return sampling


def _constraint(request: Request, form: Form, text: ModelText) -> Constraint:
    """Raises InvalidRequestError."""
    if request.ignore_eos:
        message = f"ignore_eos: an output that {form.param} describes ends by EOS; leave one of them out"
        raise InvalidRequestError(message, param="ignore_eos", code="invalid_value")
    return constraint_of(form, text.eos_ids)


def _limits(request: Request, context: Context, text: ModelText, prompt_tokens: int) -> Limits:
    room = context.length - prompt_tokens if context.length else _LENGTH_UNKNOWN
    output = room if request.output_limit is None else request.output_limit
    if room < 1 or (context.length and output > room):
        raise _too_long(request, context.length, prompt_tokens, output)
    least = request.min_tokens or 0
    if least > output:
        message = f"min_tokens: {least} is more than the {output} tokens that may be made"
        raise InvalidRequestError(message, param="min_tokens", code="invalid_value")
    eos = () if request.ignore_eos else text.eos_ids
    stop_ids = sorted({*eos, *(request.stop_token_ids or ())})
    return Limits(max_tokens=output, stop_ids=stop_ids, min_tokens=least)


def _too_long(request: Request, length: int, prompt_tokens: int, output: int) -> InvalidRequestError:
    chat = isinstance(request, ChatRequest)
    if prompt_tokens >= length:
        message = f"The prompt has {prompt_tokens} tokens, but this model's maximum context length is {length} tokens."
        return InvalidRequestError(message, param="messages" if chat else "prompt", code="context_length_exceeded")
    newer = isinstance(request, ChatRequest) and request.max_completion_tokens is not None
    message = (
        f"This model's maximum context length is {length} tokens, but {prompt_tokens + output} were asked for: "
        f"{prompt_tokens} in the prompt and {output} in the output."
    )
    param = "max_completion_tokens" if newer else "max_tokens"
    return InvalidRequestError(message, param=param, code="context_length_exceeded")
