"""Settings that policies had in earlier releases: a file may still name them, and they have no effect.

A scheduler that refused such a file would not start after an upgrade.
"""

from __future__ import annotations

import logging
from typing import Any

from pydantic import ValidationInfo

_log = logging.getLogger(__name__)
REMOVED = {
    "slack": frozenset(
        {
            "ample_share", "aside_share", "away_margin", "behind_share", "busy_gap", "busy_slack_s", "busy_util",
            "cheap_share", "ease_share", "even_share", "first_weight", "full_util", "greed_free", "greed_share",
            "group_price", "hot_margin", "hot_util", "idle_gap", "idle_margin", "idle_util", "later_share",
            "later_ttfts", "least_part_s", "link_share", "lone_share", "move_slack_s", "packed_ttfts", "pass_gap_s",
            "pass_interval_s", "preempt_share", "price_ttfts", "prompt_price", "relative_power", "relief_share",
            "shrink_share", "soon_fall", "soon_least", "soon_most", "soon_rise", "soon_share", "soon_ttfts",
            "split_share", "stale_s", "swamped_share", "tier_share", "unite_share", "urgent_share", "warm_gap_s",
            "warm_reserve",
        }
    ),
}  # fmt: skip


def without_removed(policy: Any, info: ValidationInfo) -> Any:
    """A file's entry of a policy (slack where it names none) without the settings that it had before, each with a
    warning. The context is the file's path."""
    if not isinstance(policy, dict):
        return policy
    names = sorted(REMOVED.get(str(policy.get("name", "slack")), frozenset()) & policy.keys())
    for name in names:
        _log.warning("%s: policy.%s: the setting was removed and has no effect; delete it", info.context, name)
    return {key: value for key, value in policy.items() if key not in names}
