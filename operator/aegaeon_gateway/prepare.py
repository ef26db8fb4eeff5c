"""From a checked HTTP request and a model's texts to the jobs that are submitted."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aegaeon_gateway.catalog import served_length
from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.generation import Job
from aegaeon_gateway.schema import ChatRequest, CommonRequest, CompletionRequest
from aegaeon_gateway.texts import ModelText
from aegaeon_proto import sampling as bounds
from aegaeon_proto.v1.gateway_pb2 import ModelStatus
from aegaeon_proto.v1.model_pb2 import Limits, Sampling

_LENGTH_UNKNOWN = 4096  # output tokens when nobody says how long the model's context is


@dataclass(frozen=True, slots=True)
class Prepared:
    """An HTTP request ready to be submitted: one job per prompt, `n` choices each."""

    id: str
    model: str
    request: ChatRequest | CompletionRequest
    jobs: Sequence[Job]
    prompts: Sequence[str]  # as text, for echo
    text: ModelText
    arrived: float  # time.monotonic()

    @property
    def n(self) -> int:
        return self.request.n

    @property
    def stops(self) -> tuple[str, ...]:
        return self.request.stops

    def age_s(self) -> float:
        """Seconds since the request arrived."""
        return time.monotonic() - self.arrived


async def prepare(
    request_id: str, request: ChatRequest | CompletionRequest, model: ModelStatus, text: ModelText, arrived: float
) -> Prepared:
    """Tokenize and check against the model. Raises InvalidRequestError."""
    if isinstance(request, ChatRequest):
        tokens = [await text.encode(text.render(_messages(request)), special=False)]
        prompts = [""]
    else:
        tokens = [await _encode_prompt(prompt, text) for prompt in request.prompts]
        prompts = [prompt if isinstance(prompt, str) else text.decode(prompt) for prompt in request.prompts]
    _check_ids(request, text)
    sampling = _sampling(request, text)
    jobs = [
        Job(
            request=f"{request_id}-{number}" if len(tokens) > 1 else request_id,
            model=request.model,
            prompt=prompt,
            sampling=sampling,
            limits=_limits(request, model, text, len(prompt)),
            ttft_s=model.spec.ttft_s,
            tbt_s=model.spec.tbt_s,
        )
        for number, prompt in enumerate(tokens)
    ]
    return Prepared(request_id, request.model, request, jobs, prompts, text, arrived)


def _messages(request: ChatRequest) -> list[dict[str, Any]]:
    """As templates expect them; OpenAI's `developer` is what every template calls `system`."""
    messages = []
    for message in request.messages:
        role = "system" if message.role == "developer" else message.role
        named = {} if message.name is None else {"name": message.name}
        messages.append({"role": role, "content": message.text, **named})
    return messages


async def _encode_prompt(prompt: str | list[int], text: ModelText) -> list[int]:
    tokens = await text.encode(prompt, special=True) if isinstance(prompt, str) else prompt
    if not tokens:
        raise InvalidRequestError("prompt is empty; send at least one token", param="prompt", code="invalid_value")
    if max(tokens) >= text.vocabulary.size:
        message = f"prompt: token {max(tokens)} is outside the vocabulary of {text.vocabulary.size} tokens"
        raise InvalidRequestError(message, param="prompt", code="invalid_value")
    return tokens


def _check_ids(request: CommonRequest, text: ModelText) -> None:
    named = {"logit_bias": [int(key) for key in request.logit_bias], "stop_token_ids": request.stop_token_ids}
    for param, ids in named.items():
        if ids and max(ids) >= text.vocabulary.size:
            message = f"{param}: token {max(ids)} is outside the vocabulary of {text.vocabulary.size} tokens"
            raise InvalidRequestError(message, param=param, code="invalid_value")


def _sampling(request: ChatRequest | CompletionRequest, text: ModelText) -> Sampling:
    """What the client says, else what the model's generation_config.json says, else OpenAI's defaults.

    Judged as the engine will get it, in float32. Raises InvalidRequestError.
    """
    seed = secrets.randbits(63) if request.seed is None else request.seed % 2**64
    said = {name: value for name, value in text.defaults.items() if name not in request.model_fields_set}
    sampling = Sampling(
        temperature=said.get("temperature", request.temperature),
        top_p=said.get("top_p", request.top_p),
        top_k=max(int(said.get("top_k", request.top_k)), 0),
        min_p=said.get("min_p", request.min_p),
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=said.get("repetition_penalty", request.repetition_penalty),
        seed=seed,
        logit_bias={int(key): bias for key, bias in request.logit_bias.items()},
        logprobs=request.logprob_count,
    )
    if (fault := bounds.fault(sampling)) is not None:
        raise InvalidRequestError(fault.message, param=fault.param, code="invalid_value")
    return sampling


def _limits(
    request: ChatRequest | CompletionRequest, model: ModelStatus, text: ModelText, prompt_tokens: int
) -> Limits:
    length = served_length(model) or text.max_positions
    room = length - prompt_tokens if length else _LENGTH_UNKNOWN
    output = room if request.output_limit is None else request.output_limit
    if room < 1 or (length and output > room):
        raise _too_long(request, length, prompt_tokens, output)
    if request.min_tokens > output:
        message = f"min_tokens: {request.min_tokens} is more than the {output} tokens that may be made"
        raise InvalidRequestError(message, param="min_tokens", code="invalid_value")
    eos = () if request.ignore_eos else text.eos_ids
    stop_ids = sorted({*eos, *request.stop_token_ids})
    return Limits(max_tokens=output, stop_ids=stop_ids, min_tokens=request.min_tokens)


def _too_long(
    request: ChatRequest | CompletionRequest, length: int, prompt_tokens: int, output: int
) -> InvalidRequestError:
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
