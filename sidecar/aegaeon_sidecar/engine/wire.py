"""Between protobuf messages and the engine's own types, in one place."""

from __future__ import annotations

from itertools import chain

from aegaeon_proto.sampling import LEAST_TEMPERATURE, MAX_STOP_IDS, fault
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import gateway_pb2 as gateway
from aegaeon_proto.v1 import model_pb2 as model
from aegaeon_sidecar.domain.errors import InvalidError
from aegaeon_sidecar.kv.sequences import Place, SeqKey, Sequence
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.sampling import SamplerState, SamplingParams

PLACES = {
    Place.NONE: pb.KV_PLACE_NONE,
    Place.DEVICE: pb.KV_PLACE_DEVICE,
    Place.HOST: pb.KV_PLACE_HOST,
}
ROLES = {"unified": pb.ROLE_UNIFIED, "prefill": pb.ROLE_PREFILL, "decode": pb.ROLE_DECODE}


def key_of(seq: model.SeqId) -> SeqKey:
    return SeqKey(seq.request, seq.choice)


def seq_of(key: SeqKey) -> model.SeqId:
    return model.SeqId(request=key.request, choice=key.choice)


def open_sequence(command: pb.Open, layout: Layout, seed: bytes = b"") -> Sequence:
    """A sequence as Open tells of it, without KV: prompt and prefix are to be prefilled or adopted.

    Raises InvalidError for what cannot be computed, whatever a gateway has checked before.
    """
    _check(command, layout)
    prompt = list(command.prompt)
    room = max(layout.max_model_len - len(prompt), 0)
    limit = command.limits.max_tokens or room
    return Sequence(
        key=key_of(command.seq),
        epoch=command.epoch,
        model=command.model,
        kv_shape=layout.kv_shape,
        block_tokens=layout.kv_block_tokens,
        prompt=prompt,
        output=list(command.prefix),
        sampler=_sampler(command),
        stop_ids=frozenset(command.limits.stop_ids),
        max_output=min(limit, room),
        reply_to=command.reply_to,
        seed=seed,
    )


def _check(command: pb.Open, layout: Layout) -> None:
    found = fault(command.sampling)
    if found is not None:
        raise InvalidError(found.message)
    if len(command.limits.stop_ids) > MAX_STOP_IDS:
        raise InvalidError(f"stop_token_ids: {len(command.limits.stop_ids)} tokens are more than {MAX_STOP_IDS}")
    if not command.prompt:
        raise InvalidError("prompt: it is empty")
    largest = max(chain(command.prompt, command.prefix))
    if layout.vocab_size and largest >= layout.vocab_size:
        raise InvalidError(f"prompt: token {largest} is outside the vocabulary of {layout.vocab_size} tokens")


def token_of(sequence: Sequence, index: int, finish: model.FinishReason.ValueType) -> gateway.Token:
    """Output token `index`, which was sampled here, for the gateway."""
    sampled = sequence.sampled.get(index)
    return gateway.Token(
        seq=seq_of(sequence.key),
        epoch=sequence.epoch,
        index=index,
        token=sequence.output[index],
        logprob=sampled.logprob if sampled else None,
        top=[gateway.TopLogprob(token=t, logprob=p) for t, p in sampled.top] if sampled else (),
        finish=finish,
        cached_tokens=sequence.reused if index == 0 else 0,
    )


def error_of(sequence: Sequence) -> gateway.Token:
    """The marker, without a token, that this sequence has ended with an error; the scheduler has the reason."""
    return gateway.Token(
        seq=seq_of(sequence.key),
        epoch=sequence.epoch,
        index=len(sequence.output),
        finish=model.FINISH_REASON_ERROR,
    )


def _sampler(command: pb.Open) -> SamplerState:
    sampling, limits = command.sampling, command.limits
    temperature = sampling.temperature
    params = SamplingParams(
        temperature=max(temperature, LEAST_TEMPERATURE) if temperature else 0.0,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence=sampling.presence_penalty,
        frequency=sampling.frequency_penalty,
        repetition=sampling.repetition_penalty,
        seed=sampling.seed,
        logit_bias=dict(sampling.logit_bias),
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        min_tokens=limits.min_tokens,
        stop_ids=tuple(limits.stop_ids),
    )
    return SamplerState(params, choice=command.seq.choice, prompt=command.prompt, output=command.prefix)
