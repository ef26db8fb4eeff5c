"""One model under several names: its slabs are taken once, and free when the last name has gone."""

from __future__ import annotations

import pytest
from small_world import small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, policy_settings
from aegaeon_scheduler.core.domain import InstanceId, ModelName, Role
from aegaeon_simulator.pool.world import World

M0, M1, M2 = (ModelName(f"m{i}") for i in range(3))


class Played:
    """A world of one engine with room for one model of 100 slabs, and what it was sent."""

    def __init__(self, policy: str, models: int, contents: int) -> None:
        self.sent: list[cmd.Send] = []
        latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
        self.world: World = small_world(
            [Role.UNIFIED],
            models=models,
            slabs=130,
            contents=contents,
            config=SchedulerConfig(policy=policy_settings(policy), latency=latency),
            observe=lambda now, event, commands: self.observe(commands),
        )

    def observe(self, commands: list[cmd.Command]) -> None:
        self.sent += [command for command in commands if isinstance(command, cmd.Send)]
        if hasattr(self, "world"):
            self.world.scheduler.check()

    def ask(self, model: ModelName, at: float) -> None:
        client = self.world.request(f"{model}-{at}", model, 40, 10, at)
        self.world.run(until=at + 5.0)
        assert not client.open
        assert client.rejected is None

    def bodies(self, kind: type) -> list:
        return [send.body for send in self.sent if isinstance(send.body, kind)]


@pytest.mark.parametrize("policy", ["paper", "slack"])
def test_a_second_name_is_loaded_into_the_slabs_of_the_first_and_takes_none(policy: str) -> None:
    played = Played(policy, models=2, contents=1)
    played.ask(M0, 0.0)
    played.ask(M1, 10.0)
    played.ask(M0, 20.0)
    assert [(load.model, load.slabs, load.twin) for load in played.bodies(cmd.Load)] == [(M0, 100, None), (M1, 0, M0)]
    assert not played.bodies(cmd.Unload)
    assert next(iter(played.world.engines.values())).state.device.free == 30


@pytest.mark.parametrize("policy", ["paper", "slack"])
def test_shared_slabs_are_freed_with_the_last_name_and_a_load_waits_for_all_of_them(policy: str) -> None:
    played = Played(policy, models=3, contents=2)  # m0 and m2 are one
    played.ask(M0, 0.0)
    played.ask(M2, 10.0)
    played.ask(M1, 20.0)
    unloads = [send for send in played.sent if isinstance(send.body, cmd.Unload)]
    assert {send.body.model for send in unloads} == {M0, M2}
    (load,) = [send for send in played.sent if isinstance(send.body, cmd.Load) and send.body.model == M1]
    assert {send.id for send in unloads} <= set(load.after)
    assert (load.body.slabs, load.body.twin) == (100, None)
    played.ask(M2, 30.0)
    assert played.bodies(cmd.Load)[-1] == cmd.Load(M2, 100)


def test_sharing_is_known_again_after_the_engine_reattaches() -> None:
    played = Played("slack", models=2, contents=1)
    played.ask(M0, 0.0)
    played.ask(M1, 10.0)
    played.world.attach_again(InstanceId("e0"))
    played.world.run(until=20.0)
    played.ask(M1, 21.0)
    assert len(played.bodies(cmd.Load)) == 2
    played.ask(M0, 30.0)
    assert len(played.bodies(cmd.Load)) == 2
    assert not played.bodies(cmd.Unload)
