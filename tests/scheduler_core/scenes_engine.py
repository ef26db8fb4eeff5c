"""Scenes of rules 1 to 5 of docs/policy.md: what an engine runs next."""

from __future__ import annotations

from scheduler_core.scene import ONE_MODEL, Request, Scene

LONG = 3000
BUSY = {"min_stay_s": 60.0}
"""a group that is on an engine stays: others wait"""

SCENES = {
    "late-prompt": Scene(
        "Two prompts of m0 come, of which the first is late already: the one in time comes before it.",
        (
            Request("talk", 0, answer=60),
            Request("late", 0, 1000, at=0.6, arrived=-2.0),
            Request("in-time", 0, 1000, at=0.6),
        ),
        since=0.5,
    ),
    "many-prompts": Scene(
        "Prompts of m0 together take 0.3 s: what m0 decodes, and is due before them, has its steps between.",
        (
            Request("talk", 0, answer=8, at=0.0, arrived=-1.8),
            Request("first", 0, 2000, 1, at=0.1),
            *(Request(f"next{i}", 0, 2000, 1, at=0.2) for i in range(4)),
        ),
        slabs=400,
        step={"a": 0.09},
    ),
    "full-batch": Scene(
        "Places for two, and four answers of m0, of which two are late: the others go on first.",
        tuple(Request(f"r{i}", 0, answer=12, at=0.1, arrived=0.1 - 5.0 * (i < 2)) for i in range(4)),
        world={"max_batch": 2},
    ),
    "texts": Scene(
        "m0 generates nothing: its texts that wait are computed in one pass.",
        tuple(Request(f"text{i}", 0, 100, 1) for i in range(3)),
        core={"max_pooled_tokens": 4096},
        world={"pooling": 1},
    ),
    "late-scheduler": Scene(
        "From 0.5 s on the scheduler is late with reports: turns have more steps, as nothing else is due.",
        (Request("long", 0, answer=120),),
        late=0.5,
        world={"ttfts": (10.0,)},
    ),
    "company": Scene(
        "Room for one model. As the answer of m2 ends, m0 and m1 wait: three share the steps of m0, so it comes first, "
        "though m1 is due before.",
        (
            Request("busy", 2, answer=80, at=0.0),
            Request("alone", 1, at=0.5),
            *(Request(f"shared{i}", 0, at=0.6) for i in range(3)),
        ),
        slabs=ONE_MODEL,
        models=3,
        policy=BUSY,
    ),
    "objectives": Scene(
        "m0 promises 2 s, m1 16 s. As the answer of m2 ends, m1 has 4 s left and m0 1.8: of what it promised, m1 has "
        "less left.",
        (
            Request("busy", 2, answer=80, at=0.0),
            *(Request(f"loose{i}", 1, at=0.2, arrived=-10.9) for i in range(3)),
            Request("strict", 0, at=0.9),
        ),
        slabs=ONE_MODEL,
        models=3,
        policy=BUSY,
        world={"ttfts": (2.0, 16.0, 2.0)},
        since=0.9,
    ),
    "late-group": Scene(
        "Room for one model. As the answer of m2 ends, m1 is late and m0 is not: m0 comes first.",
        (Request("busy", 2, answer=200, at=0.0), Request("late", 1, at=0.3), Request("in-time", 0, at=2.0)),
        slabs=ONE_MODEL,
        models=3,
        policy=BUSY | {"quantum_steps": 64},
        world={"ttfts": (1.5,)},
    ),
    "rounds": Scene(
        "m0 is far ahead of its reader when m1 comes; as soon as m1 is, too, they take turns with each other.",
        (Request("first", 0, answer=80), Request("second", 1, answer=40, at=0.5)),
        world={"ttfts": (0.4,)},
    ),
    "deferred-group": Scene(
        "m1 has only a deferred request: it comes behind m0, however far m0 is ahead of its reader.",
        (Request("chat", 0, answer=60), Request("night", 1, answer=16, at=0.15, defer_s=60.0)),
        world={"ttfts": (0.4,)},
    ),
    "part-stands-aside": Scene(
        "m0 is next by what it decodes, but its long prompt is due later than m1: m1 comes before a part of it.",
        (
            Request("talk", 0, answer=40, at=0.1, arrived=-1.64),
            Request("chat", 1, answer=20, at=0.6),
            Request("long", 0, LONG, 2, at=0.8),
        ),
        slabs=400,
        policy={"part_s": 0.03},
        step={"c": 0.022},
        world={"ttfts": (0.7,)},
        since=0.5,
    ),
    "no-time-to-overtake": Scene(
        "m2 waits for an engine, with less than half of its time left: a prompt of m1 lets the turns of m0 run.",
        (
            Request("warm", 1, at=0.0),
            Request("long", 0, answer=130, at=0.3),
            Request("waits", 2, at=0.4),
            Request("hello", 1, at=1.7),
        ),
        models=3,
        policy=BUSY | {"headroom": 0.2},
        since=1.3,
    ),
    "full-engine": Scene(
        "Requests for m0 come until it and m1 no longer fit: m1, with more slack, leaves.",
        (
            Request("other", 1, 40, 60, at=0.1),
            Request("first", 0, 40, 60, at=0.15),
            *(Request(f"next{i}", 0, 800, 4, at=0.7) for i in range(2)),
        ),
        slabs=210,
    ),
    "outgrown": Scene(
        "The KV of the three requests that have begun is more than the engine has: r0 and r1 leave. r0 ends "
        "meanwhile, and r1 joins the others again when there is room.",
        tuple(Request(f"r{i}", 0, 650, 4 if i == 0 else 40, at=0.1 + 0.01 * i) for i in range(4)),
        slabs=120,
        policy={"quantum_steps": 16},
    ),
}
