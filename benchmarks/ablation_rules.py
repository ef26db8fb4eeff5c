"""Variants of policy slack for benchmarks.ablation: each setting made neutral, and each rule that no setting ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.ablation_smaller import LEAST_BUSY, SMALLER, Patch, always

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.policies import slack
from aegaeon_scheduler.core.policies.slack import (
    admission,
    balance,
    engines,
    group,
    order,
    place,
    placement,
    policy,
    price,
    prompts,
    snapshot,
    turns,
)

MODULES = (order, *(sys.modules[name] for name in sorted(sys.modules) if name.startswith(f"{slack.__name__}.")))
"""of the policy: a constant is read in several, and defined in the first that has it"""
NEVER = 1e9
HEADLINE = ("0.1", "0.5", "x0.5", "x0.3", "x0.2")
MIXED = ("60/8 s", "30/2 s", "zipf")
CORE = (*HEADLINE, *MIXED)
SHARED = ("tiers", "weights", "greed", "deferred")
MEMORY = ("memory", "host", "long", "100k")
EVERY = (*CORE, "tiers", "greed", "100k", "memory", "teams")
ADMISSION = ("admission", "admission x0.2", "admission 0.1")
REST = (
    "greed x16",
    "weights",
    "deferred",
    "host",
    "long",
    "crowd",
    "makes",
    "slow link",
    "roles",
    "embeddings",
    "first uses",
    *ADMISSION,
)
GREED = ("greed", "greed x16", "long", "crowd")  # on four engines no model holds more than its part
FULL = "all rules"


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


def _constant(name: str, value: float, loads: tuple[str, ...] = EVERY, **more: float) -> tuple[str, Variant]:
    """A number beside its rule, in every module that reads it."""
    values = {name: value, **more}

    def patches() -> list[Patch]:
        return [(m, each, at) for each, at in values.items() for m in MODULES if hasattr(m, each)]

    where = next(m.__name__.rpartition(".")[2] for m in MODULES if hasattr(m, name))
    return f"{name} = {_plain(value)}", Variant(f"{where}.py", {}, patches, loads)


def _plain(value: float) -> str:
    return "never" if abs(value) >= NEVER else f"{value:g}"


def _first_come(of: group.Group, now: float, settings: SlackSettings) -> group.Order:
    oldest = min((seq.arrival for seq in of.members.values()), default=now)
    return group.Order(oldest, oldest, oldest)


def _at_most(count: int) -> list[Patch]:
    over, idle = engines.View.over, placement.Arrivals._idle_weights

    def counted(of: engines.View, load: group.Load) -> float:
        return over(of, load) if len(of.loads) < count else max(1.0, over(of, load))

    def counted_idle(of: placement.Arrivals, comer: group.Group, seq: Any) -> Any:
        inst = idle(of, comer, seq)
        return inst if inst is not None and len(of._table.at(inst)) < count else None

    return [(engines.View, "over", counted), (placement.Arrivals, "_idle_weights", counted_idle)]


def _least_used(pool: Any, inst: Any, idle: list[Any]) -> list[Any]:
    return sorted(idle, key=lambda w: w.used)


def _first_victims(pic: snapshot.Picture, comer: place.Comer) -> tuple[engines.View, list[group.Load]] | None:
    """Engine whose victim has the most slack, its load apart."""
    best: tuple[float, int, engines.View, list[group.Load]] | None = None
    for _, number, of in comer.span.slack:
        load = pic.load_on(comer.group, of.inst)
        if of.free and comer.may_go(of) and (victims := place._victims(pic, of, load, 0.0)):
            score = -max(x.rank for x in victims)
            if best is None or (score, number) < best[:2]:
                best = score, number, of, victims
    return None if best is None else best[2:]


SETTINGS: dict[str, Variant] = dict(
    [
        _setting("quantum_steps", 4, CORE),
        _setting("quantum_steps", 32, CORE),
        _setting("part_s", NEVER, (*HEADLINE[:2], "30/2 s", "greed", *MEMORY, "roles")),
        _setting("late_slack_s", 5.0),
        _setting("late_slack_s", 60.0),
        _setting("late_slack_s", -NEVER, CORE),
        _setting("min_stay_s", 0.0),
        _setting("headroom", 0.0),
        _constant("RELATIVE_POWER", 0.0, MIXED[:2]),
        _constant("RELATIVE_POWER", 1.0, MIXED[:2]),
        _constant("PASS_INTERVAL_S", 1.0, CORE),
        _constant("LONE_SHARE", 0.0),
        _constant("FULL_UTIL", NEVER),
        _constant("HOT_UTIL", NEVER, HOT_MARGIN=NEVER),
        _constant("HOT_MARGIN", 0.0),
        _constant("URGENT_SHARE", 0.0),
        _constant("TIER_SHARE", 0.0, ("tiers", "weights", "100k")),
        _constant("GREED_FREE", 3.0, GREED),
        _constant("GREED_FREE", NEVER, GREED),
        _constant("PREEMPT_SHARE", 0.0),
        _constant("IDLE_MARGIN", 0.0, (*CORE, "memory", "slow link")),
        _constant("SHRINK_SHARE", 0.0, ("0.5", "zipf", *MEMORY, "crowd")),
        _constant("STALE_S", 0.0, ("host",)),
        _constant("SOON_TTFTS", 1.0, ADMISSION),
        _constant("SOON_SHARE", 0.5, ADMISSION),
        _constant("GROUP_PRICE", 0.0, ADMISSION),
        _constant("PACKED_TTFTS", NEVER, ADMISSION),
    ]
)

RULES: dict[str, Variant] = {
    "order by slack (rule 1): first come, first served": Variant(
        "group.py", patches=lambda: [(group.Group, "order", _first_come)], loads=CORE
    ),
    "preemption for a place (rule 7)": Variant("place.py", {"min_stay_s": NEVER}, loads=CORE),
    "late prompts stand back (rule 1)": Variant(
        "prompts.py", patches=lambda: [(prompts, "_stands_back", always(False))]
    ),
    "many prompts behind decode steps (rule 1)": Variant(
        "prompts.py", patches=lambda: [(prompts.Prompts, "_queue_is_long", always(False))]
    ),
    "a prompt waits for what its group decodes (rules 1, 3)": Variant(
        "prompts.py", patches=lambda: [(prompts.Prompts, "_decodes_first", always(False))]
    ),
    "newcomers overtake (rule 4)": Variant("turns.py", patches=lambda: [(turns.Turns, "outranks", always(False))]),
    "parts stand aside (rule 3)": Variant(
        "prompts.py", patches=lambda: [(prompts.Prompts, "limit", always(None))], loads=("greed", *MEMORY, "roles")
    ),
    "relief of engines (rule 5)": Variant(
        "balance.py",
        patches=lambda: [(balance, "relieve", always(None))],
        loads=("0.1", "0.5", *MEMORY),
    ),
    "prompts as heat (rule 6)": Variant(
        "placement.py", patches=lambda: [(placement.Arrivals, "_swamped", always(False))]
    ),
    "idle weights are used (rule 6)": Variant(
        "placement.py", patches=lambda: [(placement.Arrivals, "_idle_weights", always(None))], loads=CORE
    ),
    "victims by load (rule 7): by slack alone": Variant(
        "place.py", patches=lambda: [(place, "_best_victims", _first_victims)], loads=CORE
    ),
    "first steps on a second engine (rule 7): free": Variant(
        "place.py",
        patches=lambda: [(place.Comer, "visits", always(0.0))],
        loads=(*CORE, "teams", "makes", "first uses"),
    ),
    "one more engine is dropped of only copies (rule 11)": Variant(
        "place.py", patches=lambda: [(place, "_drop_lone", always(None))], loads=("host",)
    ),
    "only copies go last (rule 11)": Variant(
        "weights.py", patches=lambda: [(policy, "idle_order", _least_used)], loads=("host",)
    ),
    "a waiting group joins one that runs (rule 10)": Variant(
        "balance.py", patches=lambda: [(balance, "_join", always(None))], loads=("0.5", "zipf", *MEMORY, "crowd")
    ),
    "price of long prompts (rule 12)": Variant(
        "price.py", patches=lambda: [(price.Costs, "late_s", always(0.0))], loads=GREED
    ),
    "packing (rule 14)": Variant(
        "admission.py", patches=lambda: [(admission.Demand, "least", always(0.0))], loads=ADMISSION
    ),
    "one group on an engine at most": Variant("engines.py", patches=lambda: _at_most(1), loads=HEADLINE),
    "two groups on an engine at most": Variant("engines.py", patches=lambda: _at_most(2), loads=HEADLINE),
}
PARTS = {
    name: Variant("", patches=lambda these=these: these, loads=CORE if name == LEAST_BUSY else ())
    for name, these in SMALLER.items()
}
"""no load of benchmarks.loads but one was chosen for these"""
VARIANTS = {FULL: Variant("", loads=(*EVERY, *REST)), **SETTINGS, **RULES, **PARTS}
