"""Decodes a message of the scheduler into a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aegaeon_proto.v1 import engine_pb2, model_pb2
from aegaeon_sidecar.domain import commands
from aegaeon_sidecar.domain.sequences import PoolingParams, ReasoningBudget, SamplingParams, TokenRun
from aegaeon_sidecar.rpc.codec.nouns import constraint_from, handle_from, seq_from, seqs_from, spec_from


def _load(load: engine_pb2.Load) -> commands.Load:
    return commands.Load(load.model, load.slabs, load.past_host, load.twin, load.identity)


def _unload(unload: engine_pb2.Unload) -> commands.Unload:
    return commands.Unload(unload.model)


def _swap_out(swap: engine_pb2.SwapOut) -> commands.SwapOut:
    return commands.SwapOut(seq_from(swap.seq), swap.epoch)


def _swap_in(swap: engine_pb2.SwapIn) -> commands.SwapIn:
    return commands.SwapIn(seq_from(swap.seq), swap.epoch, swap.slabs)


def _adopt(adopt: engine_pb2.Adopt) -> commands.Adopt:
    return commands.Adopt(seq_from(adopt.seq), adopt.epoch, handle_from(adopt.handle), adopt.slabs)


def _turn(turn: engine_pb2.Turn) -> commands.Turn:
    parts = tuple(commands.PrefillPart(seq_from(part.seq), part.tokens) for part in turn.prefill)
    return commands.Turn(turn.model, parts, seqs_from(turn.decode), turn.steps, turn.slabs, turn.warm_up)


def _open(opened: engine_pb2.Open) -> commands.Open:
    return commands.Open(
        seq=seq_from(opened.seq),
        epoch=opened.epoch,
        model=opened.model,
        prompt=tuple(opened.prompt),
        prefix=tuple(opened.prefix),
        sampling=_sampling(opened.sampling, opened.limits),
        max_tokens=opened.limits.max_tokens,
        reply_to=opened.reply_to,
        adapter=opened.adapter,
        adapter_identity=opened.adapter_identity,
        salt=opened.salt,
        public_tokens=opened.public_tokens,
        pooling=PoolingParams(tuple(opened.pooling.logits_of)) if opened.HasField("pooling") else None,
    )


def _sampling(sampling: model_pb2.Sampling, limits: model_pb2.Limits) -> SamplingParams:
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
        reasoning=_budget(sampling.reasoning) if sampling.HasField("reasoning") else None,
        constraint=constraint_from(sampling.constraint) if sampling.HasField("constraint") else None,
    )


def _budget(budget: model_pb2.ReasoningBudget) -> ReasoningBudget:
    opening, closing = TokenRun(tuple(budget.opening.tokens)), TokenRun(tuple(budget.closing.tokens))
    return ReasoningBudget(budget.tokens, opening, closing, budget.inside)


def _close(close: engine_pb2.Close) -> commands.Close:
    return commands.Close(seq_from(close.seq), close.epoch)


def _amend(amend: engine_pb2.Amend) -> commands.Amend:
    steps = amend.steps if amend.HasField("steps") else None
    return commands.Amend(amend.turn, steps, seqs_from(amend.join), seqs_from(amend.leave), amend.slabs)


def _cancel(cancel: engine_pb2.CancelCommand) -> commands.Cancel:
    return commands.Cancel(cancel.id)


def _catalog(catalog: engine_pb2.Catalog) -> commands.Catalog:
    return commands.Catalog(tuple(spec_from(spec) for spec in catalog.models), catalog.retry)


def _fetch(fetch: engine_pb2.Fetch) -> commands.Fetch:
    return commands.Fetch(fetch.model, fetch.identity)


READERS: Mapping[str, Callable[[Any], commands.Body]] = {
    "load": _load,
    "unload": _unload,
    "swap_out": _swap_out,
    "swap_in": _swap_in,
    "adopt": _adopt,
    "turn": _turn,
    "open": _open,
    "close": _close,
    "amend": _amend,
    "cancel": _cancel,
    "catalog": _catalog,
    "fetch": _fetch,
}


def command_from(message: engine_pb2.Command) -> commands.Command:
    """The command of a message."""
    kind = message.WhichOneof("body")
    read = READERS.get(str(kind))
    body = None if kind is None or read is None else read(getattr(message, kind))
    return commands.Command(message.id, body, tuple(message.after), message.reason)
