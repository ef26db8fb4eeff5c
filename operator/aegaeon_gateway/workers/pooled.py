"""Jobs of models that generate no text: from texts to prompts, and how the answer is made of what engines give."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.parse import decoded, parse_embedding
from aegaeon_gateway.request.pooled import (
    BODIES,
    EmbeddingRequest,
    PooledRequest,
    RerankRequest,
    ScoreRequest,
    ScoringRequest,
    pairs_of,
)
from aegaeon_gateway.request.prompt import pack
from aegaeon_gateway.request.receipt import Receipt
from aegaeon_gateway.workers.model import ModelText
from aegaeon_gateway.workers.prompts import check_in_vocabulary
from aegaeon_gateway.workers.wire import Done, EndpointName, Job, Options, Pooled
from aegaeon_proto.pooling import Purpose, Task
from aegaeon_proto.v1.model_pb2 import Limits, Sampling

Stage = Callable[[str], None]
Pair = tuple[str, str]

# What Qwen3-Reranker was trained with (its model card). It answers yes or no; how likely yes is, is the score.
_JUDGE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_ANSWERS = ("no", "yes")


def embed(job: Job, body: bytes, text: ModelText, stage: Stage, receipt: Receipt | None) -> tuple[Done, bytes]:
    """A request of /v1/embeddings. Raises InvalidRequestError."""
    request = parse_embedding(body, receipt)
    _check_model(request, job)
    purpose = text.purpose(job)
    if purpose.task is not Task.EMBED:
        raise _not_for(job, purpose)
    dimensions = _dimensions(request, job, purpose, text)
    stage("tokenizing")
    special = request.add_special_tokens is not False
    prompts = [_tokens(prompt, request, job, text, special=special) for prompt in request.prompts]
    activated = request.use_activation is not False
    encoded = request.encoding_format == "base64"
    pooled = Pooled(normalize=purpose.normalize and activated, dimensions=dimensions, base64=encoded)
    return _done(request, pooled, prompts, [])


def score(job: Job, body: bytes, text: ModelText, stage: Stage, receipt: Receipt | None) -> tuple[Done, bytes]:
    """A request of /rerank or /score. Raises InvalidRequestError."""
    rerank = job.endpoint == "rerank"
    request = decoded(RerankRequest, body, receipt) if rerank else decoded(ScoreRequest, body, receipt)
    _check_model(request, job)
    purpose = text.purpose(job)
    if not purpose.pools:
        raise _not_for(job, purpose)
    try:
        pairs = pairs_of(request)
    except ValueError as error:
        raise InvalidRequestError(str(error), code="invalid_value") from error
    stage("rendering")
    pairs = [
        (text.cut(query, request.max_tokens_per_query), text.cut(document, request.max_tokens_per_doc))
        for query, document in pairs
    ]
    shown = isinstance(request, RerankRequest) and request.return_documents is not False
    repeated = [document for _, document in pairs] if shown else []
    top_n = (request.top_n or 0) if isinstance(request, RerankRequest) else 0
    if purpose.task is Task.EMBED:
        prompts, numbers = _compared(pairs, request, job, text, stage)
        return _done(request, Pooled(pairs=numbers, top_n=top_n), prompts, repeated)
    logits_of = () if purpose.classifies else tuple(_answer_ids(text))
    prompts = list(_scored(pairs, request, job, purpose, text, stage))
    pooled = Pooled(logits_of=logits_of, sigmoid=request.use_activation is not False, top_n=top_n)
    return _done(request, pooled, prompts, repeated)


def _compared(
    pairs: Sequence[Pair], request: ScoringRequest, job: Job, text: ModelText, stage: Stage
) -> tuple[list[array[int]], tuple[tuple[int, int], ...]]:
    """Each text of the pairs once, and the pairs by their numbers: how alike embeddings are is a score as well."""
    if request.instruction is not None or request.chat_template_kwargs:
        message = "instruction is not supported here: this model embeds texts as they are"
        raise InvalidRequestError(message, param="instruction", code="unsupported_parameter")
    stage("tokenizing")
    numbers: dict[str, int] = {}
    for pair in pairs:
        for part in pair:
            numbers.setdefault(part, len(numbers))
    prompts = [_tokens(part, request, job, text, special=True) for part in numbers]
    return prompts, tuple((numbers[query], numbers[document]) for query, document in pairs)


def _scored(
    pairs: Iterable[Pair], request: ScoringRequest, job: Job, purpose: Purpose, text: ModelText, stage: Stage
) -> Iterable[array[int]]:
    """A prompt of each pair: by a template that knows of them, as a question for yes or no, or one behind the other."""
    if text.has_score_template:
        for pair in pairs:
            stage("rendering")
            yield _checked(text.encode(_rendered(pair, request, text), special=False), request, job)
        return
    if request.chat_template_kwargs or (purpose.classifies and request.instruction is not None):
        message = (
            "instruction and chat_template_kwargs are for models whose chat template has the roles query and document"
        )
        raise InvalidRequestError(message, param="chat_template_kwargs", code="unsupported_parameter")
    for query, document in pairs:
        stage("tokenizing")
        if purpose.classifies:
            tokens = text.encode_pair(query, document)
        else:
            question = _JUDGE.format(instruction=request.instruction or _INSTRUCTION, query=query, document=document)
            tokens = text.encode(question, special=False)
        yield _checked(tokens, request, job)


def _rendered(pair: Pair, request: ScoringRequest, text: ModelText) -> str:
    messages = [{"role": role, "content": content} for role, content in zip(("query", "document"), pair, strict=True)]
    variables = dict(request.chat_template_kwargs or {})
    if request.instruction is not None:
        messages.insert(0, {"role": "system", "content": request.instruction})
        variables.setdefault("instruction", request.instruction)
    return text.render(messages, generation_prompt=False, variables=variables)


def _answer_ids(text: ModelText) -> list[int]:
    """The tokens of no and of yes. Raises InvalidRequestError."""
    ids = [text.encode(answer, special=False) for answer in _ANSWERS]
    if any(len(tokens) != 1 for tokens in ids):
        message = "This model cannot score: its tokenizer has no single tokens for yes and no."
        raise InvalidRequestError(message, param="model", code="unsupported_model")
    return [tokens[0] for tokens in ids]


def _tokens(prompt: str | list[int], request: PooledRequest, job: Job, text: ModelText, *, special: bool) -> array[int]:
    tokens = text.encode(prompt, special=special) if isinstance(prompt, str) else array("I", prompt)
    check_in_vocabulary(_param(job), tokens, text.size)
    return _checked(tokens, request, job)


def _param(job: Job) -> str:
    return next(body.param for name, body in BODIES.items() if name == job.endpoint)


def _checked(tokens: array[int], request: PooledRequest, job: Job) -> array[int]:
    """Cut by truncate_prompt_tokens. Raises InvalidRequestError for what is empty or still too long."""
    most, param = request.truncate_prompt_tokens, _param(job)
    if most is not None:
        most = job.length or len(tokens) if most == -1 else most
        tokens = tokens[max(len(tokens) - most, 0) :] if request.truncation_side == "left" else tokens[:most]
    if not tokens:
        raise InvalidRequestError(f"{param}: a prompt has no tokens", param=param, code="invalid_value")
    if job.length and len(tokens) > job.length:
        message = (
            f"{param}: a prompt has {len(tokens)} tokens, but this model's maximum context length is {job.length} "
            "tokens; send less, or truncate_prompt_tokens"
        )
        raise InvalidRequestError(message, param=param, code="context_length_exceeded")
    return tokens


def _dimensions(request: EmbeddingRequest, job: Job, purpose: Purpose, text: ModelText) -> int:
    """As asked for, 0: all. Raises InvalidRequestError."""
    requested, size = request.dimensions, text.hidden_size
    if requested is None or requested == size:
        return 0
    allowed = purpose.matryoshka or job.matryoshka
    if not allowed:
        reason = "this model was not trained for it, as far as its files and its ModelPool (matryoshka) say"
    elif size and requested > size:
        reason = f"this model's embeddings have {size}"
    elif isinstance(allowed, tuple) and requested not in allowed:
        reason = f"this model allows {', '.join(map(str, allowed))}"
    else:
        return requested
    message = f"dimensions: {requested} is not allowed: {reason}"
    raise InvalidRequestError(message, param="dimensions", code="invalid_value")


def _check_model(request: PooledRequest, job: Job) -> None:
    if request.model != job.model:
        raise InvalidRequestError("The body names two models.", param="model", code="invalid_value")


def _not_for(job: Job, purpose: Purpose) -> InvalidRequestError:
    if purpose.task is Task.GENERATE:
        message = f"The model {job.model!r} generates text and makes no embeddings or scores; use /v1/chat/completions."
    else:
        message = f"The model {job.model!r} scores documents and makes no embeddings; use /v1/rerank."
    return InvalidRequestError(message, param="model", code="unsupported_model")


def _done(
    request: PooledRequest, pooled: Pooled, prompts: Sequence[array[int]], texts: list[str]
) -> tuple[Done, bytes]:
    packed = [pack(prompt) for prompt in prompts]
    limits = Limits(max_tokens=1).SerializeToString()
    done = Done(
        options=Options(silent=True, priority=request.priority or 0, pooled=pooled),
        sampling=Sampling(top_p=1.0, repetition_penalty=1.0).SerializeToString(),
        limits=[limits] * len(prompts),
        tokens=[len(prompt) for prompt in prompts],
        packed=[len(prompt) for prompt in packed],
        prompts=texts,
    )
    return done, b"".join(packed)


Prepare = Callable[[Job, bytes, ModelText, Stage, Receipt | None], tuple[Done, bytes]]
PREPARE: Mapping[EndpointName, Prepare] = {"embeddings": embed, "rerank": score, "score": score}
"""by endpoint"""
