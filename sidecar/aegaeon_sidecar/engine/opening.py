"""Opens a sequence, or refuses one that this engine cannot compute."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from aegaeon_proto.engine.commands import Open
from aegaeon_proto.sampling import LEAST_TEMPERATURE, MAX_PROMPT_LOGPROBS, MAX_STOP_IDS, fault
from aegaeon_sidecar.domain.errors import InvalidError
from aegaeon_sidecar.kv.sequences import Sequence, UsedAdapter
from aegaeon_sidecar.memory.prefix import MOST_SALT_BYTES
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.sampling import Guide, SamplerState


def open_sequence(
    command: Open,
    layout: Layout,
    seed: bytes = b"",
    guide: Guide | None = None,
    adapter: UsedAdapter | None = None,
) -> Sequence:
    """Build the sequence that Open describes, without KV: its prompt and prefix will be prefilled or adopted.

    `guide`: of its constraint, at the beginning of the output.

    Raises InvalidError for what cannot be computed, whatever a gateway has checked before.
    """
    _check(command, layout)
    if command.pooling is not None:
        seed = b""  # nothing of it is kept for others
    room = max(layout.max_model_len - len(command.prompt), 0)
    limit = command.max_tokens or room
    return Sequence(
        key=command.seq,
        epoch=command.epoch,
        model=command.model,
        kv_shape=layout.kv_shape,
        block_tokens=layout.kv_block_tokens,
        prompt=list(command.prompt),
        output=list(command.prefix),
        sampler=_sampler(command, guide),
        stop_ids=frozenset(command.sampling.stop_ids),
        max_output=min(limit, room),
        reply_to=command.reply_to,
        scored=None if command.sampling.prompt_logprobs is None or command.prefix else [],
        seed=seed,
        salt=command.salt,
        public_blocks=command.public_tokens // layout.kv_block_tokens,
        adapter=adapter,
        pooling=command.pooling,
    )


def _check(command: Open, layout: Layout) -> None:
    problem, stop_ids = fault(command.sampling), command.sampling.stop_ids
    if problem is not None:
        raise InvalidError(problem.message)
    if len(stop_ids) > MAX_STOP_IDS:
        raise InvalidError(f"stop_token_ids: {len(stop_ids)} tokens are more than {MAX_STOP_IDS}")
    if any(not run.tokens for run in command.sampling.bad_words):
        raise InvalidError("bad_words: an entry has no tokens")
    if not command.prompt:
        raise InvalidError("prompt: must not be empty")
    if len(command.salt) > MOST_SALT_BYTES:
        raise InvalidError(f"salt: {len(command.salt)} bytes are more than {MOST_SALT_BYTES}")
    _check_pooling(command, layout)
    likeliest = command.sampling.prompt_logprobs
    if likeliest is not None and (count := len(command.prompt) * (1 + likeliest)) > MAX_PROMPT_LOGPROBS:
        raise InvalidError(f"prompt_logprobs: {count} are more than {MAX_PROMPT_LOGPROBS}")
    largest = max(chain(command.prompt, command.prefix))
    if layout.vocab_size and largest >= layout.vocab_size:
        raise InvalidError(f"prompt: token {largest} is outside the vocabulary of {layout.vocab_size} tokens")


def _check_pooling(command: Open, layout: Layout) -> None:
    """A gateway reads the same files, but perhaps not at the same time."""
    if command.pooling is None:
        if layout.pools:
            raise InvalidError(f"model: {command.model} is for {layout.task.value}, and generates no text")
        return
    if not layout.pools:
        raise InvalidError(f"model: {command.model} generates text; it makes neither embeddings nor scores")
    if len(command.prompt) > layout.max_model_len:
        raise InvalidError(f"prompt: {len(command.prompt)} tokens are more than {layout.max_model_len}")
    if layout.vocab_size and max(command.pooling.logits_of, default=0) >= layout.vocab_size:
        raise InvalidError(f"pooling: a token is outside the vocabulary of {layout.vocab_size} tokens")


def _sampler(command: Open, guide: Guide | None) -> SamplerState:
    params = command.sampling
    if 0.0 < params.temperature < LEAST_TEMPERATURE:
        params = replace(params, temperature=LEAST_TEMPERATURE)
    return SamplerState(params, choice=command.seq.choice, prompt=command.prompt, output=command.prefix, guide=guide)
