"""Scenes of rules 12 to 17 of docs/policy.md: who comes late first, who is served at all, and conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_core.scene import ONE_MODEL, Request, Scene
from scheduler_core.scenes_engine import BUSY
from scheduler_core.scenes_pool import BATCH, HEAVY, INTERACTIVE

from aegaeon_scheduler.core.domain import Terms
from aegaeon_simulator.workload import Arrival

FEASIBLE = {"admission": "feasible"}
CROWD = tuple(Request(f"hot{i}", 0, answer=40, at=0.1 + 0.05 * (i // 3)) for i in range(24))
"""three of them are a group, the next one begins another on an engine that has none"""
PRESSED: Mapping[str, Any] = {"engines": 8, "models": 8, "slabs": ONE_MODEL, "step": HEAVY}

SCENES = {
    "eased-tiers": Scene(
        "m0 is of tier batch, m1 of interactive. Both have time, so m0 comes first, which is due first.",
        (Request("night", 0, answer=10, arrived=-1.7), Request("chat", 1, answer=30, at=0.15)),
        step={"c": 0.022},
        world={"terms": {"m0": BATCH, "m1": INTERACTIVE}},
        until=1.5,
    ),
    "weights": Scene(
        "m1 has three times the weight of m0, but has had the engine alone: m0 comes first, though m1 is due before.",
        (Request("first", 0, answer=30, at=0.1), Request("second", 1, answer=12, at=0.06, arrived=-1.89)),
        step={"c": 0.022},
        world={"terms": {"m1": Terms(weight=3)}},
    ),
    "deferred-prompt": Scene(
        "A deferred prompt of m0 came before another one, and begins behind it.",
        (
            Request("night", 0, 1000, 2, at=0.0, defer_s=60.0),
            Request("chat", 0, 1000, 2, at=0.05),
        ),
    ),
    "deferred-takes-no-time": Scene(
        "Deferred requests of m0 fill the engine's time, but count as none: m1 is placed beside them at once.",
        (*(Request(f"night{i}", 0, answer=16, at=0.1, defer_s=60.0) for i in range(3)), Request("chat", 1, at=0.5)),
        step=HEAVY,
    ),
    "priorities": Scene(
        "Tenant a has two places in the queue of m0: its request of priority -1 gets the first, b keeps its own.",
        (
            Request("a0", 0, 1000, 1, tenant="a", priority=1, at=0.0),
            Request("b0", 0, 1000, 1, tenant="b", at=0.01),
            Request("a1", 0, 1000, 1, tenant="a", priority=-1, at=0.02),
        ),
    ),
    "admitted-soon": Scene(
        "Admission: fifteen prompts of m0 need half of the engine's time soon: a request for m1 is refused.",
        (*(Request(f"r{i}", 0, 3000, 1, at=0.1) for i in range(15)), Request("refused", 1, at=0.15)),
        slabs=900,
        core=FEASIBLE,
        until=0.2,
    ),
    "admitted-later": Scene(
        "Admission: twelve prompts of m0 need 0.51 of the engine's time within TTFT, but 0.45 within 1.2 TTFT. A "
        "request for m1, for which 0.47 is the limit, is admitted.",
        (*(Request(f"r{i}", 0, 3000, 1, at=0.1) for i in range(12)), Request("admitted", 1, at=0.15)),
        slabs=900,
        core=FEASIBLE,
        until=0.2,
    ),
    "admitted-packing": Scene(
        "Admission: steps of a group take 0.6 of an engine. Each of two has one; the third one is refused, though 0.4 "
        "of both engines is idle.",
        tuple(Request(f"r{i}", i, answer=8, at=0.1 + 0.3 * i) for i in range(3)),
        engines=2,
        models=3,
        core=FEASIBLE,
        step={"a": 0.06},
        slabs=400,
    ),
    "admitted-loads": Scene(
        "Admission: loads of seven models would take longer than 0.62 of 2 s: the last two are refused.",
        tuple(Request(f"r{i}", i) for i in range(8)),
        models=8,
        slabs=900,
        core=FEASIBLE,
        until=0.2,
    ),
    "warm-set": Scene(
        "Nothing waits for an engine while m0 decodes: free memory is filled with m1, m2 and m3, one of them a second.",
        (Request("long", 0, answer=60),),
        models=4,
        slabs=450,
        policy={"warm": True},
        step={"a": 0.05},
    ),
    "warm-order": Scene(
        "m1 was asked for more often than m0: for m2, m0 makes room, though m1 was used before it.",
        (
            *(Request(f"often{i}", 1, at=0.1 + 0.3 * i) for i in range(3)),
            Request("once", 0, at=1.5),
            Request("other", 2, at=2.5),
        ),
        models=3,
        policy={"warm": True},
        since=2.4,
    ),
    "greedy-tenant": Scene(
        "Tenant big asks m0 for much at once, then small for one prompt, which begins after one of big.",
        (
            *(Request(f"big{i}", 0, 1000, 12, tenant="big", at=0.3 + 0.001 * i) for i in range(8)),
            Request("small", 0, 1000, 4, tenant="small", at=0.32),
            Request("warm", 0, at=0.0),
        ),
        slabs=500,
        since=0.3,
    ),
    "places-by-tenant": Scene(
        "A batch has two places. Three answers of tenant big are due first: one of them goes on, beside small's.",
        (
            *(Request(f"big{i}", 0, answer=10, tenant="big", at=0.1, arrived=-1.5) for i in range(3)),
            Request("small", 0, answer=10, tenant="small", at=0.1, arrived=-1.45),
        ),
        step={"a": 0.06},
        world={"max_batch": 2},
    ),
    "memory-by-tenant": Scene(
        "m0 outgrows the engine. Tenant big has two of three requests: one of them leaves, though small's is due last.",
        (
            *(Request(f"big{i}", 0, 480, 80, tenant="big", at=0.1) for i in range(2)),
            Request("small", 0, 480, 80, tenant="small", at=0.2),
        ),
        slabs=113,
        policy={"quantum_steps": 16},
    ),
    "tenant-tiers": Scene(
        "A prompt of tier interactive came last, and begins before the second of two of tier batch. The first one "
        "began while the weights were loaded.",
        (
            *(Request(f"night{i}", 0, 1000, 2, at=0.0, terms=BATCH) for i in range(2)),
            Request("chat", 0, 1000, 2, at=0.05, terms=INTERACTIVE),
        ),
    ),
    "stays-with-its-prefix": Scene(
        "Steps of m0 take 0.76 of e0, so others would begin a group on e1. The second prompt of a conversation joins "
        "m0 on e0, whose cache has its beginning.",
        tuple(Request(f"other{i}", 0, answer=24, at=0.1) for i in range(3)),
        talks=tuple(Arrival(t, 0, n, 4, session="talk") for t, n in ((0.1, 2000), (1.4, 2100))),
        engines=2,
        slabs=400,
        step=HEAVY,
        since=1.3,
    ),
    "idle-weights-by-prefix": Scene(
        "Both engines have m0, idle. e0 is busier, but its cache has the beginning of the prompt: it goes there.",
        (
            *(Request(f"other{i}", 0, answer=4, at=0.1 + 0.25 * (i > 2)) for i in range(4)),
            Request("busy", 1, answer=30, at=3.0),
        ),
        talks=tuple(Arrival(t, 0, n, 4, session="talk") for t, n in ((0.1, 2500), (4.0, 2600))),
        engines=2,
        slabs=400,
        step=HEAVY,
        since=2.9,
    ),
    "late-and-many": Scene(
        "Prompts of tenant big are late, and many: what small decodes is due soon, and comes before them.",
        (
            Request("small", 0, answer=8, at=0.0, arrived=-1.8, tenant="small"),
            Request("first", 0, 2000, 1, at=0.1, arrived=-3.0, tenant="big"),
            *(Request(f"next{i}", 0, 2000, 1, at=0.2, arrived=-3.0, tenant="big") for i in range(4)),
        ),
        slabs=400,
        step={"a": 0.09},
    ),
    "crowded-out": Scene(
        "m0 is hot on e0, and big's prompts fill its second group, which waits. small waits for no prompts of others: "
        "it joins e0.",
        (
            *(Request(f"r{i}", 0, answer=24, tenant="big", at=0.1) for i in range(3)),
            Request("other", 1, answer=60, at=0.15),
            *(Request(f"next{i}", 0, answer=4, tenant="big", at=0.4 + 0.01 * i) for i in range(3)),
            Request("small", 0, answer=4, tenant="small", at=0.45),
        ),
        engines=2,
        slabs=ONE_MODEL,
        policy=BUSY,
        step=HEAVY,
        since=0.4,
        until=1.4,
    ),
    "learned-share": Scene(
        "Admission: no request was late for a minute, so more is admitted: prompts of m0 need half of the engine's "
        "time soon, and a request for m1 is not refused.",
        (
            Request("first", 0, at=0.1),
            Request("later", 0, at=60.0),
            *(Request(f"r{i}", 0, 3000, 1, at=60.1) for i in range(17)),
            Request("admitted", 1, at=60.15),
        ),
        slabs=900,
        core=FEASIBLE,
        since=60.1,
        until=60.16,
    ),
    "greedy-model": Scene(
        "Room for one model. m0 has a group on each of eight engines when seven other models ask for one answer each. "
        "It is greedy, and ranks 0.37 s later: m1 preempts one of its groups at once, the others do at the next "
        "two passes.",
        (*CROWD, *(Request(f"other{i}", i, at=1.0) for i in range(1, 8))),
        **PRESSED,
        since=1.0,
        until=1.55,
    ),
    "costly-prompt": Scene(
        "m0 is greedy, as in greedy-model. Its eighth group still loads when a prompt of 0.4 s joins it, then a short "
        "one, which begins before it.",
        (
            *CROWD[:-2],
            *(Request(f"other{i}", i, at=0.52) for i in range(1, 8)),
            Request("long", 0, 2000, 4, at=0.6),
            Request("short", 0, 40, 4, at=0.61),
        ),
        **PRESSED | {"step": HEAVY | {"p1": 2e-4}},
        policy=BUSY,
        since=0.6,
        until=0.75,
    ),
}
