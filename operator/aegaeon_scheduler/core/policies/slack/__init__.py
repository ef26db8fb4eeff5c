"""Our own policy: whoever's next token is due first runs, whoever has most slack gives way. See docs/policy.md."""

from aegaeon_scheduler.core.policies.slack.policy import SlackPolicy

__all__ = ["SlackPolicy"]
