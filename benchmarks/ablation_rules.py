"""Variants of policy slack for benchmarks.ablation: each setting made neutral, and each rule that no setting ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.policies.slack import (
    gate,
    group,
    packing,
    picture,
    place,
    policy,
    rebalance,
    relieve,
    turns,
    unite,
    view,
)

NEVER = 1e9
HEADLINE = ("0.1", "0.5", "x0.5", "x0.3", "x0.2")
MIXED = ("60/8 s", "30/2 s", "zipf")
CORE = (*HEADLINE, *MIXED)
SHARED = ("tiers", "weights", "greed", "deferred")
MEMORY = ("memory", "host", "long", "100k")
EVERY = (*CORE, "tiers", "greed", "100k", "memory", "teams")
REST = (
    "greed, 16 GPUs",
    "weights",
    "deferred",
    "host",
    "long",
    "crowd",
    "makes",
    "roles",
    "embeddings",
    "first uses",
    "admission",
)
GREED = ("greed", "greed, 16 GPUs", "long", "crowd")  # on four engines no model holds more than its part
FULL = "all rules"

Patch = tuple[Any, str, Any]
"""owner, its attribute, what stands there for a while"""


@dataclass(frozen=True, slots=True)
class Variant:
    """The policy without one thing. `where` it is defined; `loads` on which it can matter."""

    where: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    patches: Callable[[], list[Patch]] | None = None
    loads: tuple[str, ...] = EVERY


@contextmanager
def instead(patches: list[Patch]) -> Iterator[None]:
    """Other functions in classes or modules for a while. They have to be interpreted."""
    with ExitStack() as stack:
        for owner, name, value in patches:
            before = owner.__dict__[name]
            stack.callback(setattr, owner, name, before)
            setattr(owner, name, value)
        yield


def _setting(name: str, value: float, loads: tuple[str, ...] = EVERY, **more: float) -> tuple[str, Variant]:
    return f"{name} = {_plain(value)}", Variant("SlackSettings", {name: value, **more}, None, loads)


def _plain(value: float) -> str:
    return "never" if abs(value) >= NEVER else f"{value:g}"


def _is(value: object) -> Callable[..., object]:
    return lambda *args, **named: value


def _first_come(of: group.Group, now: float, settings: SlackSettings) -> group.Order:
    oldest = min((seq.arrival for seq in of.members.values()), default=now)
    return group.Order(oldest, oldest, oldest)


def _at_most(count: int) -> list[Patch]:
    over, idle = view.View.over, policy.SlackPolicy._idle_weights

    def counted(of: view.View, load: group.Load) -> float:
        return over(of, load) if len(of.loads) < count else max(1.0, over(of, load))

    def counted_idle(of: policy.SlackPolicy, comer: group.Group, seq: Any) -> Any:
        inst = idle(of, comer, seq)
        return inst if inst is not None and len(of._table.at(inst)) < count else None

    return [(view.View, "over", counted), (policy.SlackPolicy, "_idle_weights", counted_idle)]


def _least_used(pool: Any, inst: Any, idle: list[Any]) -> list[Any]:
    return sorted(idle, key=lambda w: w.used)


def _first_victims(pic: picture.Picture, comer: place.Comer) -> tuple[view.View, list[group.Load]] | None:
    """Engine whose victim has the most slack, its load and the victim's absence apart."""
    best: tuple[float, int, view.View, list[group.Load]] | None = None
    for lot in comer.span.lots:
        load = pic.load_on(comer.group, lot.inst)
        for _, order, of in lot.slack:
            if of.free and comer.may_go(of) and (victims := place._victims(pic, of, load)):
                score = -max(x.rank for x in victims)
                if best is None or (score, order) < best[:2]:
                    best = score, order, of, victims
    return None if best is None else best[2:]


SETTINGS: dict[str, Variant] = dict(
    [
        _setting("quantum_steps", 4, CORE),
        _setting("quantum_steps", 32, CORE),
        _setting("part_s", NEVER, (*HEADLINE[:2], "30/2 s", "greed", *MEMORY, "roles"), least_part_s=NEVER),
        _setting("least_part_s", 0.1, ("x0.2", "30/2 s", "greed", "long", "100k", "roles")),
        _setting("late_slack_s", 5.0),
        _setting("late_slack_s", 60.0),
        _setting("late_slack_s", -NEVER, CORE),
        _setting("relative_power", 0.0, MIXED[:2]),
        _setting("relative_power", 1.0, MIXED[:2]),
        _setting("even_share", 0.0, MIXED[:2]),
        _setting("pass_interval_s", 1.0, CORE),
        _setting("pass_gap_s", 0.0, CORE),
        _setting("lone_share", 0.0),
        _setting("full_util", NEVER),
        _setting("idle_util", 0.0),
        _setting("hot_util", NEVER, swamped_share=NEVER),
        _setting("hot_margin", 0.0),
        _setting("swamped_share", NEVER),
        _setting("idle_gap", 0.0),
        _setting("idle_gap", NEVER),
        _setting("urgent_share", 0.0),
        _setting("tier_share", 0.0, ("tiers", "weights", "100k")),
        _setting("ease_share", NEVER, ("tiers", "100k")),
        _setting("ease_share", 0.0, ("tiers", "100k")),
        _setting("ample_share", NEVER),
        _setting("behind_share", 0.0),
        _setting("aside_share", 0.0, ("greed", *MEMORY, "roles")),
        _setting("greed_share", 0.0, GREED),
        _setting("greed_free", 3.0, GREED),
        _setting("cheap_share", 0.0, GREED),
        _setting("prompt_price", 0.0, GREED),
        _setting("price_ttfts", NEVER, GREED),
        _setting("preempt_share", 0.0),
        _setting("away_margin", 0.0),
        _setting("idle_margin", 0.0),
        _setting("idle_margin", 0.5),
        _setting("first_weight", 0.0, ("0.1", "x0.2", "zipf", "first uses", "teams")),
        _setting("min_stay_s", 0.0),
        _setting("headroom", 0.0),
        _setting("relief_share", 0.0, ("0.1", "0.5", "x0.2", *MEMORY, "teams")),
        _setting("relief_share", 1.0, ("0.1", "0.5", "x0.2", *MEMORY, "teams")),
        _setting("shrink_share", 0.0, ("0.5", "zipf", *MEMORY, "crowd")),
        _setting("split_share", NEVER, ("0.5", "zipf", *MEMORY, "crowd")),
        _setting("unite_share", -1.0, ("0.5", "zipf", *MEMORY, "greed", "crowd")),
        _setting("busy_util", NEVER),
        _setting("busy_slack_s", NEVER, CORE),
        _setting("busy_gap", 0.0, CORE),
        _setting("move_slack_s", 0.0, CORE),
        _setting("stale_s", 0.0, ("host",)),
        _setting("stale_s", NEVER, ("host",)),
        _setting("soon_ttfts", 1.0, ("admission",)),
        _setting("soon_share", 0.5, ("admission",), soon_rise=0.0, soon_fall=0.0),
        _setting("soon_rise", 0.0, ("admission",), soon_fall=0.0),
        _setting("soon_least", 0.0, ("admission",), soon_most=1.0),
        _setting("group_price", 0.0, ("admission",)),
        _setting("later_share", NEVER, ("admission",)),
        _setting("packed_ttfts", NEVER, ("admission",)),
        _setting("link_share", NEVER, ("admission",)),
    ]
)

RULES: dict[str, Variant] = {
    "order by slack (rule 1): first come, first served": Variant(
        "group.py", patches=lambda: [(group.Group, "order", _first_come)], loads=CORE
    ),
    "preemption for a place (rule 7)": Variant("place.py", {"min_stay_s": NEVER}, loads=CORE),
    "late prompts stand back (rule 1)": Variant("turns.py", patches=lambda: [(turns, "_stands_back", _is(False))]),
    "many prompts behind decode steps (rule 1)": Variant(
        "turns.py", patches=lambda: [(turns.Turns, "_queue_is_long", _is(False))]
    ),
    "a prompt waits for what its group decodes (rules 1, 3)": Variant(
        "turns.py", patches=lambda: [(turns.Turns, "_decodes_first", _is(False))]
    ),
    "newcomers overtake (rule 4)": Variant("turns.py", patches=lambda: [(turns.Turns, "outranks", _is(False))]),
    "newcomers look at time first (rule 4)": Variant(
        "turns.py", patches=lambda: [(turns.Turns, "_has_time", _is(True))], loads=CORE
    ),
    "parts stand aside (rule 3)": Variant(
        "turns.py", patches=lambda: [(turns.Turns, "_before", _is(None))], loads=("greed", *MEMORY, "roles")
    ),
    "relief of full engines (rule 5)": Variant(
        "relieve.py",
        patches=lambda: [(relieve, "_evict_one", _is(None)), (relieve, "_shrink", _is(None))],
        loads=("0.1", "0.5", *MEMORY),
    ),
    "shrinking of what outgrew its engine (rule 5)": Variant(
        "relieve.py", patches=lambda: [(relieve, "_shrink", _is(None))], loads=("0.5", *MEMORY)
    ),
    "idle weights are used (rule 6)": Variant(
        "policy.py", patches=lambda: [(policy.SlackPolicy, "_idle_weights", _is(None))], loads=CORE
    ),
    "least busy place (rule 7): any that fits": Variant(
        "place.py",
        patches=lambda: [
            (
                place,
                "_choices",
                lambda p, c, lot, load: [v for v in lot._views if v.free and place._has_room(v, load) and c.may_go(v)][
                    :1
                ],
            )
        ],
        loads=CORE,
    ),
    "victims by load and absence (rule 7): by slack alone": Variant(
        "place.py", patches=lambda: [(place, "_best_victims", _first_victims)], loads=CORE
    ),
    "price of absence (price.py): 0": Variant(
        "price.py", patches=lambda: [(place, "absence_s", _is(0.0))], loads=(*CORE, "memory", "host")
    ),
    "one more engine is dropped of only copies (rule 11)": Variant(
        "place.py", patches=lambda: [(place, "_drop_lone", _is(None))], loads=("host",)
    ),
    "only copies go last (rule 11)": Variant(
        "reach.py", patches=lambda: [(policy, "idle_order", _least_used)], loads=("host",)
    ),
    "waiting groups of a model unite (rule 10)": Variant(
        "unite.py", patches=lambda: [(unite, "_together", _is(None))], loads=("0.5", "zipf", *MEMORY, "crowd")
    ),
    "a waiting group joins one that runs (rule 10)": Variant(
        "unite.py", patches=lambda: [(unite, "_join", _is(None))], loads=("0.5", "zipf", *MEMORY, "crowd")
    ),
    "balance hands over near groups alone (rule 10)": Variant(
        "rebalance.py", patches=lambda: [(rebalance, "_may_move", _is(False))], loads=("x0.2", "teams")
    ),
    "flooded groups are refused (rule 14)": Variant(
        "gate.py", patches=lambda: [(gate.Gate, "_flooded", _is(None))], loads=("admission",)
    ),
    "packing (rule 14)": Variant(
        "packing.py", patches=lambda: [(packing.Packing, "least", _is(0.0))], loads=("admission",)
    ),
    "one group on an engine at most": Variant("view.py", patches=lambda: _at_most(1), loads=HEADLINE),
    "two groups on an engine at most": Variant("view.py", patches=lambda: _at_most(2), loads=HEADLINE),
}
VARIANTS = {FULL: Variant("", loads=(*EVERY, *REST)), **SETTINGS, **RULES}
