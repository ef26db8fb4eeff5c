"""How a token is chosen. The state belongs to the sequence and moves with it; the arithmetic is the backend's."""

from aegaeon_sidecar.sampling.chosen import Chosen, NotFinite, Sampled, Scored
from aegaeon_sidecar.sampling.state import SamplerState

__all__ = ["Chosen", "NotFinite", "Sampled", "SamplerState", "Scored"]
