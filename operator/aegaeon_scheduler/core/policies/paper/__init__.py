"""The policy of the paper's text: Algorithm 1 for prefill, Algorithm 2 for decode, on any mix of roles."""

from aegaeon_scheduler.core.policies.paper.policy import PaperPolicy
from aegaeon_scheduler.core.policies.paper.quota import quotas

__all__ = ["PaperPolicy", "quotas"]
