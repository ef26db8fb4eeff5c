"""Encodes tokens as messages for their gateway."""

from __future__ import annotations

from aegaeon_proto.codec.nouns import FINISHES, seq_to
from aegaeon_proto.engine.tokens import Said, Token
from aegaeon_proto.v1 import gateway_pb2


def token_to(token: Token) -> gateway_pb2.Token:
    """The message of a token."""
    return gateway_pb2.Token(
        seq=seq_to(token.seq),
        epoch=token.epoch,
        index=token.index,
        token=token.token,
        logprob=token.logprob,
        top=[gateway_pb2.TopLogprob(token=t, logprob=p) for t, p in token.top],
        finish=FINISHES[token.finish],
        cached_tokens=token.cached_tokens,
        prefill_s=token.prefill_s,
        load_s=token.load_s,
        stall_s=token.stall_s,
        prompt=[_said_to(scores) for scores in token.prompt],
        pooled=token.pooled,
    )


def _said_to(scores: Said) -> gateway_pb2.PromptLogprob:
    top = [gateway_pb2.TopLogprob(token=t, logprob=p) for t, p in scores.top]
    return gateway_pb2.PromptLogprob(token=scores.token, logprob=scores.logprob, rank=scores.rank, top=top)
