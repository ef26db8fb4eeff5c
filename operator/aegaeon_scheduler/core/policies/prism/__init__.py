"""The policy of Prism (arXiv 2505.04021): KV pressure, Moore and Hodgson, eviction of idle models."""

from aegaeon_scheduler.core.policies.prism.policy import PrismPolicy

__all__ = ["PrismPolicy"]
