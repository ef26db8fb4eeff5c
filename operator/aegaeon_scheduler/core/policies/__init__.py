"""Policies, and their interface."""

from aegaeon_scheduler.core.policies.interface import Move, Policy, Proposal

__all__ = ["Move", "Policy", "Proposal"]
