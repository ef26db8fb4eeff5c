"""Each rule of policy slack is for something: its transcript is another one without it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.ablation_rules import RULES, SETTINGS, SMALLER
from benchmarks.ablation_transcripts import changed
from small_world import interpreted

PAGE = Path(__file__).parents[2] / "docs" / "policy.md"
SHOWN = {
    "part_s = never": "long-prompt",
    "late_slack_s = never": "late-group",
    "min_stay_s = 0": "preempted",
    "headroom = 0": "full-engine",
    "RELATIVE_POWER = 0": "objectives",
    "PASS_INTERVAL_S = 1": "preempted",
    "LONE_SHARE = 0": "company",
    "FULL_UTIL = never": "no-time",
    "HOT_UTIL = never": "hot",
    "HOT_MARGIN = 0": "many-ask-at-once",
    "URGENT_SHARE = 0": "no-time",
    "TIER_SHARE = 0": "tier-above",
    "GREED_FREE = never": "greedy-model",
    "PREEMPT_SHARE = 0": "not-for-little",
    "IDLE_MARGIN = 0": "not-for-copies",
    "SHRINK_SHARE = 0": "outgrown",
    "STALE_S = 0": "past-memory",
    "SOON_TTFTS = 1": "admitted-later",
    "SOON_SHARE = 0.5": "admitted-loads",
    "GROUP_PRICE = 0": "admitted-soon",
    "PACKED_TTFTS = never": "admitted-packing",
    "order by slack (rule 1): first come, first served": "preempted",
    "preemption for a place (rule 7)": "preempted",
    "late prompts stand back (rule 1)": "late-prompt",
    "many prompts behind decode steps (rule 1)": "many-prompts",
    "a prompt waits for what its group decodes (rules 1, 3)": "many-prompts",
    "newcomers overtake (rule 4)": "overtaken",
    "parts stand aside (rule 3)": "part-stands-aside",
    "relief of engines (rule 5)": "full-engine",
    "prompts as heat (rule 6)": "many-ask-at-once",
    "idle weights are used (rule 6)": "overtaken",
    "victims by load (rule 7): by slack alone": "busier-engine",
    "first steps on a second engine (rule 7): free": "first-uses",
    "one more engine is dropped of only copies (rule 11)": "only-copy-goes",
    "only copies go last (rule 11)": "only-copies",
    "a waiting group joins one that runs (rule 10)": "outgrown",
    "price of long prompts (rule 12)": "costly-prompt",
    "packing (rule 14)": "admitted-packing",
    "one group on an engine at most": "side-by-side",
    "those in time first in a full batch (rule 1)": "full-batch",
    "texts of a model are computed together (rule 1)": "texts",
    "longer turns while the scheduler is late (rule 1)": "late-scheduler",
    "rounds (rule 2)": "rounds",
    "deferred groups come last (rules 2, 13)": "deferred-group",
    "newcomers look whether there is time (rule 4)": "no-time-to-overtake",
    "members leave an engine that is too small (rule 5)": "outgrown",
    "no more groups than engines (rule 6)": "no-more-groups",
    "the least busy place (rule 7)": "least-busy",
    "the engine whose victim has most slack (rule 7)": "most-slack",
    "a tier above preempts beside prompts (rule 8)": "tier-above",
    "between equals prompts are worked off (rule 8)": "equals",
    "prefetch (rule 9)": "rounds",
    "a group goes where its weights are (rule 11)": "nearest-weights",
    "a disk serves one load at a time (rule 11)": "one-disk",
    "loads past host memory (rule 11)": "past-memory",
    "tiers are eased while all have time (rule 12)": "eased-tiers",
    "weights (rule 12)": "weights",
    "greed (rule 12)": "greedy-model",
    "a deferred prompt begins last (rule 13)": "deferred-prompt",
    "a deferred group takes no time (rule 13)": "deferred-takes-no-time",
    "priorities (rule 13)": "priorities",
    "a limit of time soon (rule 14)": "admitted-soon",
    "a limit of loads (rule 14)": "admitted-loads",
    "the share is learned (rule 14)": "learned-share",
    "warm set (rule 15)": "warm-set",
    "idle weights go by what is expected (rule 15)": "warm-order",
    "fair clock (rule 16)": "greedy-tenant",
    "places by tenant (rule 16)": "places-by-tenant",
    "who has most leaves first (rule 16)": "memory-by-tenant",
    "late ones of a long queue wait (rule 16)": "late-and-many",
    "who waits for no others' prompts joins one that runs (rule 16)": "crowded-out",
    "tenants of upper tiers first (rule 16)": "tenant-tiers",
    "a prompt joins its prefix (rule 17)": "stays-with-its-prefix",
    "idle weights by prefix (rule 17)": "idle-weights-by-prefix",
    "a home (rule 17)": "conversation",
}
"""what is left out, and the transcript that shows what it is for"""
NO_RULE = {
    "two groups on an engine at most",
    "quantum_steps = 4",
    "quantum_steps = 32",
    "late_slack_s = 5",
    "late_slack_s = 60",
    "RELATIVE_POWER = 1",
    "GREED_FREE = 3",
}
"""another number, and nothing left out"""


@interpreted
@pytest.mark.parametrize("rule", SHOWN)
def test_without_it_its_transcript_is_another_one(rule: str) -> None:
    name = SHOWN[rule]
    assert changed(rule, [name]) == [name]


def test_all_that_can_be_left_out_has_a_transcript() -> None:
    assert SETTINGS.keys() | RULES.keys() | SMALLER.keys() == SHOWN.keys() | NO_RULE


def test_every_rule_of_the_page_can_be_left_out() -> None:
    """Their numbers are the page's."""
    rules = PAGE.read_text("utf-8").partition("\n## Rules\n")[2].partition("\n## ")[0]
    numbered = re.findall(r"^(\d+)\. \*\*", rules, re.MULTILINE)
    named = {
        number
        for rule in SHOWN
        for numbers in re.findall(r"\(rules? ([\d, ]+)\)", rule)
        for number in numbers.split(", ")
    }
    assert len(numbered) >= 17
    assert named == set(numbered)
