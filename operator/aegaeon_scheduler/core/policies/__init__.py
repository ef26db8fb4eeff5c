"""Policies, and their interface."""

from aegaeon_scheduler.core.policies.interface import Dispatch, Move, Placement, Policy, Proposal, Victims

__all__ = ["Dispatch", "Move", "Placement", "Policy", "Proposal", "Victims"]
