"""Terms of models and requests from their messages."""

from __future__ import annotations

from aegaeon_proto.codec.nouns import TIER_OF
from aegaeon_proto.v1 import model_pb2
from aegaeon_scheduler.core.domain import Terms, Tier


def terms_from(tier: model_pb2.Tier.ValueType, weight: int) -> Terms:
    """Return the terms of a model or request; a tier of a later version counts as standard."""
    return Terms(TIER_OF.get(tier, Tier.STANDARD), weight or 1)
