"""The core's decisions in small scenarios, word for word as transcripts/*.txt has them.

A change that means to change them writes the files anew: `make transcripts`, and review the diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from scheduler_core import scene, scenes_engine, scenes_pool, scenes_sharing
from scheduler_core.transcript import Transcript
from small_world import small_world

from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, policy_settings
from aegaeon_scheduler.core.domain import InstanceId, ModelName, Role, Terms, Tier
from aegaeon_simulator.pool.clients import Clients
from aegaeon_simulator.pool.world import World
from aegaeon_simulator.workload import Arrival

FOLDER = Path(__file__).parent / "transcripts"
MEANT = (
    "the core decides otherwise; if that is meant: `make transcripts`, and review the diff. After another field of a "
    "command or an event, raise FORMAT in aegaeon_scheduler/core/log.py as well"
)
M0, M1 = ModelName("m0"), ModelName("m1")


def world_of(transcript: Transcript, policy: str, roles: list[Role], slabs: int) -> World:
    latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
    settings = scene.slack() if policy == "slack" else policy_settings(policy)
    config = SchedulerConfig(policy=settings, latency=latency, refine=False)
    return small_world(roles, models=2, slabs=slabs, config=config, observe=transcript.observe)


def preempted(transcript: Transcript) -> World:
    world = world_of(transcript, "slack", [Role.UNIFIED], slabs=130)
    world.request("long", M0, 40, 250, 0.1)
    world.request("short", M1, 40, 4, 0.4)
    world.run(until=5.0)
    return world


def side_by_side(transcript: Transcript) -> World:
    world = world_of(transcript, "slack", [Role.UNIFIED], slabs=250)
    world.request("first", M0, 40, 12, 0.1)
    world.request("second", M1, 40, 12, 0.15)
    world.run(until=5.0)
    return world


def handed_off(transcript: Transcript) -> World:
    world = world_of(transcript, "paper", [Role.PREFILL, Role.DECODE], slabs=250)
    world.request("one", M0, 40, 6, 0.1)
    world.run(until=5.0)
    return world


def lost(transcript: Transcript) -> World:
    world = world_of(transcript, "slack", [Role.UNIFIED, Role.UNIFIED], slabs=130)
    world.request("one", M0, 40, 40, 0.1)
    world.run(until=0.6)
    world.kill(InstanceId("e0"))
    world.run(until=10.0)
    return world


def long_prompt(transcript: Transcript) -> World:
    parts = scene.slack(part_s=0.03, min_stay_s=0.0)
    latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
    config = SchedulerConfig(policy=parts, latency=latency, refine=False)
    terms = {M0: Terms(Tier.BATCH), M1: Terms(Tier.INTERACTIVE)}
    world = small_world([Role.UNIFIED], 2, 250, config=config, observe=transcript.observe, terms=terms)
    world.request("warm", M1, 40, 2, 0.0)
    world.request("long", M0, 3000, 4, 0.3)
    world.request("hello", M1, 40, 4, 0.55)
    world.run(until=5.0)
    return world


def overtaken(transcript: Transcript) -> World:
    world = world_of(transcript, "slack", [Role.UNIFIED], slabs=250)
    world.request("warm", M1, 40, 2, 0.0)
    world.request("long", M0, 40, 80, 0.3)
    world.request("hello", M1, 40, 4, 0.9)
    world.run(until=5.0)
    return world


def conversation(transcript: Transcript) -> World:
    world = small_world([Role.UNIFIED] * 2, 2, 160, config=_plain_config(), observe=transcript.observe)
    talk = [Arrival(t, 0, n, 4, session="talk") for t, n in ((0.1, 2500), (1.5, 2600), (3.0, 2700))]
    Clients(world, [M0, M1], [*talk[:2], Arrival(2.4, 1, 40, 60), talk[2]])
    world.run(until=10.0)
    return world


def _plain_config() -> SchedulerConfig:
    latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
    return SchedulerConfig(policy=scene.slack(), latency=latency, refine=False)


SCENARIOS: dict[str, tuple[str, Callable[[Transcript], World]]] = {
    "preempted": (
        "Room for one model: a long answer of m0 is preempted for m1, then resumed.",
        preempted,
    ),
    "side-by-side": ("Room for two models: they take turns, and neither is unloaded.", side_by_side),
    "handed-off": ("Policy paper: prefill on e0, its KV cache is adopted by e1, which decodes.", handed_off),
    "long-prompt": (
        "A long prompt of tier batch is computed in parts: a prompt of tier interactive waits for one of them.",
        long_prompt,
    ),
    "overtaken": (
        "A prompt comes while m0 decodes far ahead of its reader: its next turn is dropped, the running one cut short.",
        overtaken,
    ),
    "conversation": (
        "Room for one model: m1 has e0 when the third prompt of a conversation with m0 comes, whose first two are in "
        "the cache of e0. It waits for e0 while there is time, though e1 has nothing to do.",
        conversation,
    ),
    "lost": ("Engine e0 dies while it decodes: the sequence is submitted again with its prefix, and e1 goes on.", lost),
}
SCENES = {**scenes_engine.SCENES, **scenes_pool.SCENES, **scenes_sharing.SCENES}
SCENARIOS |= {name: (each.title, each.play) for name, each in SCENES.items()}

REFUSED = "admitted-packing"
"""a scene in which a request is not answered"""


def played(name: str) -> tuple[Transcript, World]:
    """Returns what the core decides now, and the world in which it did."""
    title, scenario = SCENARIOS[name]
    transcript = Transcript(title)
    return transcript, scenario(transcript)


def recorded(name: str) -> str:
    """Returns what its transcript says."""
    return (FOLDER / f"{name}.txt").read_text("utf-8")


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_core_decides_as_the_transcript_records(name: str) -> None:
    transcript, world = played(name)
    if name not in SCENES or (SCENES[name].until == scene.END_S and name != REFUSED):
        assert all(client.finished for client in world.clients.values())
    file = FOLDER / f"{name}.txt"
    if os.environ.get("WRITE_TRANSCRIPTS"):
        file.write_text(transcript.text, "utf-8")
    assert transcript.text == file.read_text("utf-8"), MEANT
