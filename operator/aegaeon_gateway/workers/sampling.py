"""From a request to the sampling and limits of engines: the client's word, the model's, OpenAI's defaults."""

from __future__ import annotations

import secrets

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.schema import ChatRequest, CommonRequest, CompletionRequest
from aegaeon_gateway.workers.model import ModelText
from aegaeon_gateway.workers.prompts import Context, Request, check_in_vocabulary
from aegaeon_proto import sampling as bounds
from aegaeon_proto.v1.model_pb2 import Limits, ReasoningBudget, Sampling, TokenRun

_LENGTH_UNKNOWN = 4096  # output tokens when the model's context is unknown


def sampling_of(request: Request, budget: ReasoningBudget | None, text: ModelText) -> Sampling:
    """Sampling parameters: the client's, else those of the model's generation_config.json, else OpenAI's defaults.

    Judged as the engine will get it, in float32. Raises InvalidRequestError.
    """
    _check_ids(request, text)
    seed = secrets.randbits(63) if request.seed is None else request.seed % 2**64
    default = text.defaults.get

    def or_default(value: float | None, name: str, otherwise: float) -> float:
        return default(name, otherwise) if value is None else value

    sampling = Sampling(
        temperature=or_default(request.temperature, "temperature", 1.0),
        top_p=or_default(request.top_p, "top_p", 1.0),
        top_k=max(int(or_default(request.top_k, "top_k", 0)), 0),
        min_p=or_default(request.min_p, "min_p", 0.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=or_default(request.repetition_penalty, "repetition_penalty", 1.0),
        seed=seed,
        logit_bias={int(key): bias for key, bias in (request.logit_bias or {}).items()},
        logprobs=request.logprob_count,
        allowed_ids=request.allowed_token_ids,
        bad_words=[TokenRun(tokens=run) for run in _bad_runs(request, text)],
        prompt_logprobs=prompt_logprob_count(request),
        reasoning=budget,
    )
    if (fault := bounds.fault(sampling)) is not None:
        raise InvalidRequestError(fault.message, param=fault.param, code="invalid_value")
    return sampling


def prompt_logprob_count(request: Request) -> int | None:
    """So many of each token of the prompts are needed, for `prompt_logprobs` or for those of an echo."""
    echoed = request.logprobs if isinstance(request, CompletionRequest) and request.echo else None
    counts = [count for count in (request.prompt_logprobs, echoed) if count is not None]
    return max(counts, default=None)


def limits_of(request: Request, context: Context, text: ModelText, prompt_tokens: int) -> Limits:
    """Raises InvalidRequestError."""
    room = context.length - prompt_tokens if context.length else _LENGTH_UNKNOWN
    output = room if request.output_limit is None else request.output_limit
    if (request.output_limit != 0 and room < 1) or (context.length and output > room):
        raise _too_long(request, context.length, prompt_tokens, output)
    least = request.min_tokens or 0
    if least > output:
        message = f"min_tokens: {least} is more than the {output} tokens that may be made"
        raise InvalidRequestError(message, param="min_tokens", code="invalid_value")
    eos = () if request.ignore_eos else text.eos_ids
    stop_ids = sorted({*eos, *(request.stop_token_ids or ())})
    return Limits(max_tokens=output, stop_ids=stop_ids, min_tokens=least)


def _check_ids(request: CommonRequest, text: ModelText) -> None:
    check_in_vocabulary("logit_bias", [int(key) for key in request.logit_bias or ()], text.size)
    check_in_vocabulary("stop_token_ids", request.stop_token_ids or (), text.size)
    check_in_vocabulary("allowed_token_ids", request.allowed_token_ids or (), text.size)


def _bad_runs(request: CommonRequest, text: ModelText) -> list[list[int]]:
    """Each text as its tokens, and as those behind a space where that is another token at the beginning."""
    runs: list[list[int]] = []
    for word in request.bad_words or ():
        alone = list(text.encode(word, special=False))
        spaced = list(text.encode(" " + word.lstrip(), special=False))
        if not alone:
            raise InvalidRequestError("bad_words: a text is empty", param="bad_words", code="invalid_value")
        runs.append(alone)
        if len(spaced) == len(alone) and spaced[0] != alone[0]:
            runs.append(spaced)
    return runs


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
