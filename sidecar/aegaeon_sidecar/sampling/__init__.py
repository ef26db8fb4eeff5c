"""The choice of tokens. The state belongs to the sequence and moves with it; the arithmetic is the backend's."""

from aegaeon_sidecar.sampling.choices import Chosen, NotFinite, Picked, Pooled, Refused, Sampled, Scored
from aegaeon_sidecar.sampling.guide import Guide
from aegaeon_sidecar.sampling.masks import Masker, Masks
from aegaeon_sidecar.sampling.state import SamplerState

__all__ = [
    "Chosen",
    "Guide",
    "Masker",
    "Masks",
    "NotFinite",
    "Picked",
    "Pooled",
    "Refused",
    "Sampled",
    "SamplerState",
    "Scored",
]
