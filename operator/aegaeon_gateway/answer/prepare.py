"""From what a worker made of a body to the jobs that are submitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from aegaeon_gateway.generation.generation import Job
from aegaeon_gateway.models.texts import ModelText
from aegaeon_gateway.request.prompt import Prompt
from aegaeon_gateway.workers.wire import Done, Options
from aegaeon_proto.v1.gateway_pb2 import ModelStatus
from aegaeon_proto.v1.model_pb2 import Limits, Sampling


@dataclass(frozen=True, slots=True)
class Prepared:
    """An HTTP request ready to be submitted: one job per prompt, `n` choices each."""

    id: str
    model: str
    request: Options
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

    @property
    def prompt_tokens(self) -> int:
        return sum(job.prompt.tokens for job in self.jobs)


def prepared_from(
    request_id: str, model: ModelStatus, text: ModelText, done: tuple[Done, bytes], arrived: float
) -> Prepared:
    """Raises ValueError when the parts of a worker's message do not fit each other."""
    message, tail = done
    sampling = Sampling.FromString(message.sampling)
    jobs = [
        Job(
            request=f"{request_id}-{number}" if len(message.tokens) > 1 else request_id,
            model=model.spec.name,
            prompt=prompt,
            sampling=sampling,
            limits=Limits.FromString(limits),
            ttft_s=model.spec.ttft_s,
            tbt_s=model.spec.tbt_s,
            identity=model.spec.identity,
        )
        for number, (prompt, limits) in enumerate(zip(_cut(tail, message), message.limits, strict=True))
    ]
    return Prepared(request_id, model.spec.name, message.options, jobs, message.prompts, text, arrived)


def _cut(tail: bytes, message: Done) -> list[Prompt]:
    """Each prompt's tokens."""
    if len(tail) != sum(message.packed):
        raise ValueError(f"{len(tail)} bytes of tokens came of {sum(message.packed)}")
    ends = accumulate(message.packed)
    return [
        Prompt(count, tail[end - size : end])
        for count, size, end in zip(message.tokens, message.packed, ends, strict=True)
    ]
