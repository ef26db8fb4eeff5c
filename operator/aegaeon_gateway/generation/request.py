"""A request of engines: the prompts of one HTTP request, and the options that all their choices share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from aegaeon_gateway.request.prompt import Prompt
from aegaeon_gateway.text.detokenize import Vocabulary
from aegaeon_gateway.workers.wire import Done, Options
from aegaeon_proto.v1.gateway_pb2 import Terms
from aegaeon_proto.v1.model_pb2 import Limits, ModelSpec, Sampling


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks by which a request is identified in the log, and in its trace (W3C traceparent; empty: it is not
    traced)."""

    log_id: str = "-"
    traceparent: str = ""


UNMARKED = Marks()


@dataclass(frozen=True, slots=True)
class Request:
    """Each of `prompts` has one of `limits` and `options.n` choices. `texts`: what the answer repeats.

    Of a batch, its tokens are due `defer_s` later. `terms`: among all requests for its model; None: as most are.
    `spec` is of the model that the prompts were made for: token k is due `ttft_s + k * tbt_s` seconds after `arrived`
    (time.monotonic()). `echoed`, `conversation`, `ignored`: as in Done. `salt`: who shares its KV cache, as in message
    Open; `public`: of each prompt, so many tokens whose KV cache is shared by all.
    """

    id: str
    spec: ModelSpec
    vocabulary: Vocabulary
    options: Options
    sampling: Sampling
    prompts: Sequence[Prompt]
    limits: Sequence[Limits]
    texts: Sequence[str]
    arrived: float
    echoed: bytes = b""
    conversation: bytes = b""
    ignored: tuple[str, ...] = ()
    marks: Marks = UNMARKED
    tenant: str = ""
    terms: Terms | None = None
    defer_s: float = 0.0
    salt: bytes = b""
    public: Sequence[int] = ()

    @property
    def model(self) -> str:
        return self.spec.name

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.prompts)

    def submit_id(self, number: int) -> str:
        """Each prompt is a submission of its own."""
        return f"{self.id}-{number}" if len(self.prompts) > 1 else self.id


def request_of(
    id_: str, spec: ModelSpec, vocabulary: Vocabulary, done: tuple[Done, bytes], arrived: float, marks: Marks = UNMARKED
) -> Request:
    """Make a request of a worker's message. Raises ValueError when the parts of its message do not fit each other."""
    message, tail = done
    prompts = _cut(tail, message)
    if len(prompts) != len(message.limits):
        raise ValueError(f"{len(message.limits)} limits came of {len(prompts)} prompts")
    if message.public and len(message.public) != len(prompts):
        raise ValueError(f"{len(message.public)} public beginnings came of {len(prompts)} prompts")
    sampling = Sampling.FromString(message.sampling)
    limits = [Limits.FromString(each) for each in message.limits]
    kept = (message.echoed, message.conversation, message.ignored)
    return Request(
        id_,
        spec,
        vocabulary,
        message.options,
        sampling,
        prompts,
        limits,
        message.prompts,
        arrived,
        *kept,
        marks,
        public=message.public,
    )


def _cut(tail: bytes, message: Done) -> list[Prompt]:
    """Each prompt's tokens."""
    if len(tail) != sum(message.packed):
        raise ValueError(f"{len(tail)} bytes of tokens came of {sum(message.packed)}")
    ends = accumulate(message.packed)
    return [
        Prompt(count, tail[end - size : end])
        for count, size, end in zip(message.tokens, message.packed, ends, strict=True)
    ]
