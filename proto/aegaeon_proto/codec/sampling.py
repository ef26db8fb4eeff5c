"""Decodes the options of sampling and pooling; gateways write these messages themselves."""

from __future__ import annotations

from aegaeon_proto.codec.nouns import CONSTRAINT_KIND_OF
from aegaeon_proto.engine.sampling import Constraint, ReasoningBudget, SamplingParams, TokenRun
from aegaeon_proto.v1 import model_pb2


def sampling_from(sampling: model_pb2.Sampling, limits: model_pb2.Limits) -> SamplingParams:
    """The options of a request."""
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        logit_bias=dict(sampling.logit_bias),
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        min_tokens=limits.min_tokens,
        stop_ids=tuple(limits.stop_ids),
        allowed_ids=tuple(sampling.allowed_ids),
        bad_words=tuple(TokenRun(tuple(run.tokens)) for run in sampling.bad_words),
        prompt_logprobs=sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else None,
        reasoning=_budget_from(sampling.reasoning) if sampling.HasField("reasoning") else None,
        constraint=_constraint_from(sampling.constraint) if sampling.HasField("constraint") else None,
    )


def _budget_from(budget: model_pb2.ReasoningBudget) -> ReasoningBudget:
    opening, closing = TokenRun(tuple(budget.opening.tokens)), TokenRun(tuple(budget.closing.tokens))
    return ReasoningBudget(budget.tokens, opening, closing, budget.inside)


def _constraint_from(message: model_pb2.Constraint) -> Constraint:
    return Constraint(
        CONSTRAINT_KIND_OF.get(message.kind), message.text, tuple(message.end_ids), message.proof, message.share
    )
