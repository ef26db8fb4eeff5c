"""Scenes of rules 6 to 11 of docs/policy.md: which engine a group is on."""

from __future__ import annotations

from scheduler_core.scene import ONE_MODEL, Request, Scene
from scheduler_core.scenes_engine import BUSY

from aegaeon_scheduler.core.domain import Terms, Tier

HEAVY = {"c": 0.022}
"""a batch of three takes 0.76 of an engine, one alone 0.32"""
INTERACTIVE, BATCH = Terms(Tier.INTERACTIVE), Terms(Tier.BATCH)

SCENES = {
    "hot": Scene(
        "Three share the steps of m0 on e0, which take 0.76 of its time: the fourth begins a second group on e1.",
        tuple(Request(f"r{i}", 0, answer=12, at=0.1 + 0.25 * (i > 2)) for i in range(4)),
        engines=2,
        step=HEAVY,
    ),
    "many-ask-at-once": Scene(
        "Prompts of m0 take more than a quarter of its 2 s: the next one begins a second group on e1.",
        (Request("first", 0, 3600, 1), *(Request(f"next{i}", 0, 3600, 1, at=0.2) for i in range(6))),
        engines=2,
        slabs=500,
        until=0.35,
    ),
    "no-more-groups": Scene(
        "Room for one model. m0 is hot on e0, and its second group waits, as m1 has e1: there is no third one.",
        (
            *(Request(f"r{i}", 0, answer=24, at=0.1) for i in range(3)),
            Request("other", 1, answer=60, at=0.15),
            *(Request(f"next{i}", 0, answer=4, at=0.4 + 0.01 * i) for i in range(6)),
        ),
        engines=2,
        slabs=ONE_MODEL,
        policy=BUSY,
        step=HEAVY,
        since=0.4,
    ),
    "least-busy": Scene(
        "m0 runs on e0, which has room for m1 as well: m1 goes to e1, which has nothing to do.",
        (Request("first", 0, answer=40), Request("second", 1, at=0.4)),
        engines=2,
    ),
    "no-time": Scene(
        "There is room for m1, but m0 takes nearly all of the engine's time: m1 waits until half of its 2 s is gone.",
        (*(Request(f"r{i}", 0, answer=24, at=0.1) for i in range(3)), Request("other", 1, at=0.5)),
        step=HEAVY,
    ),
    "most-slack": Scene(
        "Room for one model on each engine. m2 comes: m1 on e1 has more slack than m0 on e0, and leaves.",
        (
            Request("first", 0, answer=120, at=0.1, arrived=-1.5),
            Request("second", 1, answer=120, at=0.15),
            Request("comes", 2, at=1.4),
        ),
        engines=2,
        slabs=ONE_MODEL,
        models=3,
        since=1.3,
        until=2.0,
    ),
    "busier-engine": Scene(
        "Room for one model on each engine. m0 has a little more slack than m1, but serves three: m1 leaves.",
        (
            *(Request(f"shared{i}", 0, answer=40) for i in range(3)),
            Request("alone", 1, answer=40, at=0.12, arrived=-2.85),
            Request("comes", 2, at=1.4, arrived=0.0),
        ),
        engines=2,
        models=3,
        slabs=ONE_MODEL,
        step=HEAVY,
        since=1.3,
        until=1.9,
    ),
    "not-for-little": Scene(
        "Room for two models, and m1 waits. m0 ranks later, but not by more than 0.3 of their 2 s: it stays.",
        (
            Request("first", 0, answer=20, at=0.1, arrived=-1.8),
            Request("beside", 1, answer=12, at=0.1),
            Request("third", 2, answer=4, at=0.7, arrived=-0.8),
        ),
        models=3,
        step={"a": 0.045},
        since=0.6,
    ),
    "not-for-copies": Scene(
        "Room for one model. A change takes 0.4 s, in which the engine idles, so m0 stays until it is four times that "
        "ahead of m1. It is 1.45 s ahead as m1 comes.",
        (Request("long", 0, answer=120), Request("short", 1, at=0.35)),
        slabs=ONE_MODEL,
        policy={"min_stay_s": 0.0},
    ),
    "first-uses": Scene(
        "First steps of a model take 0.4 s on each engine. m0 has run on e0, and comes back there, though e1 is idle.",
        (
            Request("once", 0, at=0.1),
            Request("first", 1, at=1.5),
            Request("second", 2, answer=150, at=3.0),
            Request("again", 0, at=4.2),
        ),
        engines=2,
        models=3,
        core={"refine": True},
        world={"first_s": 0.4},
        since=4.2,
        until=4.8,
    ),
    "tier-above": Scene(
        "Room for one model, and m0 has prompt after prompt on the lane: m1, of a tier above, preempts it.",
        (
            *(Request(f"r{i}", 0, 2000, 1, at=0.1 + 0.05 * i, terms=BATCH) for i in range(20)),
            Request("hello", 1, at=0.6),
        ),
        slabs=170,
        world={"terms": {"m0": BATCH, "m1": INTERACTIVE}},
        since=0.55,
        until=1.6,
    ),
    "equals": Scene(
        "Room for one model, and m0 has prompt after prompt on the lane: m1, of the same tier, waits until they end.",
        (
            Request("first", 0, 40, 1),
            *(Request(f"r{i}", 0, 2000, 1, at=0.9 + 0.05 * i) for i in range(13)),
            Request("hello", 1, at=0.95, arrived=-8.0),
        ),
        slabs=170,
        world={"ttfts": (10.0,)},
        since=1.2,
    ),
    "nearest-weights": Scene(
        "Memory of e0's node has m0, that of e1's m1: each goes where its weights are, though e0 is as idle.",
        (Request("first", 1), Request("second", 0, at=0.8)),
        engines=2,
        world={"nodes": 2, "host_models": 1},
    ),
    "one-disk": Scene(
        "m1 and m2 are read from one disk: the second load begins when the first has ended.",
        tuple(Request(f"r{i}", i) for i in (1, 2)),
        engines=2,
        models=3,
        slabs=ONE_MODEL,
        world={"host_models": 1},
    ),
    "only-copies": Scene(
        "The disk's m2 is on the device alone. For m1, which memory has, m0 makes room, though m2 was used before it.",
        (Request("disk", 2), Request("first", 0, at=4.0), Request("second", 1, at=5.0)),
        models=3,
        world={"host_models": 2},
    ),
    "only-copy-goes": Scene(
        "m1 is on the device alone, and fills it. m2 could never run otherwise: when half of its time is used up, m1 "
        "is dropped.",
        (Request("first", 1), Request("second", 2, at=4.0)),
        models=3,
        slabs=ONE_MODEL,
        world={"host_models": 1},
    ),
    "past-memory": Scene(
        "All models in memory came, or were asked for, in the last ten minutes: loads go past it, so m2, read from "
        "disk, displaces none. Ten minutes later, it does.",
        (
            Request("first", 0, at=0.1),
            Request("second", 1, at=1.0),
            Request("disk", 2, at=2.0),
            Request("again", 0, at=602.0),
            Request("later", 2, at=604.0),
        ),
        models=3,
        slabs=ONE_MODEL,
        world={"host_models": 2},
        until=610.0,
    ),
}
