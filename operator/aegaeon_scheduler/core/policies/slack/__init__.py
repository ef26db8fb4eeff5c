"""Our own policy: earliest deadline first; the group with the most slack is preempted. See docs/policy.md."""

from aegaeon_scheduler.core.policies.slack.policy import SlackPolicy

__all__ = ["SlackPolicy"]
