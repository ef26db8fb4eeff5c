"""One job: from a body to what is submitted, checked against the model."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from aegaeon_gateway.dialects.families import Dialect
from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.bodies import named, parsed_chat
from aegaeon_gateway.request.parse import parse
from aegaeon_gateway.request.prompt import pack
from aegaeon_gateway.request.receipt import Receipt
from aegaeon_gateway.request.schema import ChatRequest, CompletionRequest
from aegaeon_gateway.request.structured import Form, constraint_of
from aegaeon_gateway.workers.grammars import Compiler
from aegaeon_gateway.workers.model import ModelText
from aegaeon_gateway.workers.pooled import PREPARE
from aegaeon_gateway.workers.prompts import Context, Prompts, Request, prompts_of
from aegaeon_gateway.workers.public import public_tokens
from aegaeon_gateway.workers.sampling import limits_of, prompt_logprob_count, sampling_of
from aegaeon_gateway.workers.spoken import budget_of, constrained, dialect_of, without_hints
from aegaeon_gateway.workers.texts import count, detokenize, tokenize
from aegaeon_gateway.workers.wire import Answered, Done, EndpointName, Job, Options, ToolName
from aegaeon_proto.pooling import Task
from aegaeon_proto.sampling import MAX_PROMPT_LOGPROBS
from aegaeon_proto.v1.model_pb2 import Constraint

MAX_REPEATED = 256 << 10
"""characters of echoed prompts, or tokens of returned ones, in one answer: some 10 ms of the gateway's loop"""

Stage = Callable[[str], None]
_ALONE: dict[EndpointName, Callable[[Job, bytes, ModelText, Stage, Receipt | None], bytes]] = {
    "tokenize": tokenize,
    "detokenize": detokenize,
    "count_tokens": count,
}


def run(job: Job, body: bytes, text: ModelText, stage: Stage) -> tuple[Done | Answered, bytes]:
    """Parse, render, tokenize, check; tells `stage` what comes next. Raises InvalidRequestError."""
    stage("checking")
    receipt = None if job.strict else Receipt()
    done, tail = _run(job, body, text, stage, receipt)
    return (structs.replace(done, ignored=receipt.entries) if receipt and receipt.entries else done), tail


def _run(
    job: Job, body: bytes, text: ModelText, stage: Stage, receipt: Receipt | None
) -> tuple[Done | Answered, bytes]:
    if (alone := _ALONE.get(job.endpoint)) is not None:
        return Answered(), alone(job, body, text, stage, receipt)
    if (prepare := PREPARE.get(job.endpoint)) is not None:
        return prepare(job, body, text, stage, receipt)
    if job.endpoint == "completions":
        return _prepared(parse(CompletionRequest, body, receipt), job, text, stage)
    made = parsed_chat(job.endpoint, body, job.history, receipt)
    with named(job.endpoint):
        done, tail = _prepared(without_hints(made.chat, job, text, receipt), job, text, stage)
    names = {tool.function.name: ToolName(tool.name, tool.namespace, tool.custom) for tool in made.tools}
    options = structs.replace(done.options, tool_names=names) if names else done.options
    return structs.replace(done, options=options, echoed=made.echoed, conversation=made.conversation), tail


def _prepared(request: Request, job: Job, text: ModelText, stage: Stage) -> tuple[Done, bytes]:
    if request.model != job.model:
        raise InvalidRequestError("The body names two models.", param="model", code="invalid_value")
    _check_generates(job, text)
    dialect, form = dialect_of(request, job, text), constrained(request)
    compiler = None if form is None else text.compiler  # before what would be done again
    context = Context(job.length or text.max_positions)
    prompts = prompts_of(request, dialect, text, context, stage)
    _check_repeated(request, prompts)
    limits = [limits_of(request, context, text, len(prompt)) for prompt in prompts.tokens]
    if request.output_limit == 0:  # an engine makes one token at least
        for limit in limits:
            limit.max_tokens = 1
    packed = [pack(prompt) for prompt in prompts.tokens]
    sampling = sampling_of(request, budget_of(request, job, prompts.reasoning, text), text)
    if form is not None and compiler is not None:
        constraint = _constraint(request, form, text, compiler)
        sampling.constraint.CopyFrom(constraint)
        sampling.constraint.share = job.share
    done = Done(
        options=_options(request, dialect, prompts),
        sampling=sampling.SerializeToString(),
        limits=[limit.SerializeToString() for limit in limits],
        tokens=[len(prompt) for prompt in prompts.tokens],
        packed=[len(prompt) for prompt in packed],
        prompts=prompts.texts,
        public=public_tokens(request, prompts.tokens, job, text) if job.public else [],
    )
    return done, b"".join(packed)


def _check_generates(job: Job, text: ModelText) -> None:
    """Raises InvalidRequestError."""
    task = text.purpose(job).task
    if task is not Task.GENERATE:
        use = "embeddings; use /v1/embeddings" if task is Task.EMBED else "scores; use /v1/rerank or /score"
        message = f"The model {job.model!r} generates no text. It makes {use}."
        raise InvalidRequestError(message, param="model", code="unsupported_model")


def _constraint(request: Request, form: Form, text: ModelText, compiler: Compiler) -> Constraint:
    """Raises InvalidRequestError."""
    if request.ignore_eos:
        message = f"ignore_eos: an output that {form.param} describes ends by EOS; leave one of them out"
        raise InvalidRequestError(message, param="ignore_eos", code="invalid_value")
    return constraint_of(form, text.eos_ids, compiler)


def _options(request: Request, dialect: Dialect, prompts: Prompts) -> Options:
    chat = request if isinstance(request, ChatRequest) else None
    return Options(
        n=request.n,
        stops=request.stops,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        include_stop=bool(request.include_stop_str_in_output),
        min_tokens=request.min_tokens or 0,
        skip_special_tokens=request.skip_special_tokens is not False,
        stream=bool(request.stream),
        include_usage=request.include_usage,
        continuous_usage=request.continuous_usage,
        echo=bool(request.echo),
        silent=request.output_limit == 0,
        logprob_count=request.logprob_count,
        prompt_logprobs=prompt_logprob_count(request) is not None,
        prompt_logprob_count=request.prompt_logprobs,
        return_token_ids=bool(request.return_token_ids),
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        calls=dialect.tools,
        reasoning=dialect.reasoning,
        inside_reasoning=prompts.reasoning,
        tools=tuple(tool.function.name for tool in chat.callable_tools) if chat else (),
        barred_tools=tuple(tool.function.name for tool in chat.barred_tools) if chat else (),
        parallel_calls=chat is None or chat.parallel_tool_calls is not False,
        show_reasoning=chat is None or chat.include_reasoning is not False,
        priority=request.priority or 0,
        service_tier=request.service_tier or "",
        cache_salt=request.cache_salt or "",
    )


def _check_repeated(request: Request, prompts: Prompts) -> None:
    """An answer repeats the prompts with each choice; the gateway holds all of it, and writes it at once."""
    tokens, characters = request.n * sum(map(len, prompts.tokens)), request.n * sum(map(len, prompts.texts))
    count = prompt_logprob_count(request)
    repeated = [
        ("echo", characters, MAX_REPEATED, "characters"),
        ("return_token_ids", tokens * bool(request.return_token_ids), MAX_REPEATED, "tokens"),
        ("prompt_logprobs", 0 if count is None else tokens * (1 + count), MAX_PROMPT_LOGPROBS, "logprobs"),
    ]
    for param, size, most, unit in repeated:
        if size > most:
            message = f"{param}: the answer would repeat {size} {unit} of prompts; {most} are allowed"
            raise InvalidRequestError(message, param=param, code="invalid_value")
