"""The program of a switch, by both policies: weights and KV move side by side, and nothing waits that need not."""

from __future__ import annotations

import pytest
from small_world import small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import SchedulerConfig, policy_settings
from aegaeon_scheduler.core.domain import CommandId, ModelName, Role

POLICIES = pytest.mark.parametrize("policy", ["paper", "slack"])


class Program:
    """What one engine was sent, and when each command was over, while two batches take turns in room for one."""

    def __init__(self, policy: str) -> None:
        self.sent: dict[CommandId, tuple[float, cmd.Send]] = {}
        self.over: dict[CommandId, float] = {}
        config = SchedulerConfig(policy=policy_settings(policy), hold_s=1e9, refine=False)
        world = small_world([Role.UNIFIED], models=2, slabs=130, observe=self._see, config=config)
        clients = [
            world.request(f"m{model}-{i}", ModelName(f"m{model}"), 400, 120, 0.1 + 0.2 * model)
            for model in range(2)
            for i in range(6)
        ]
        world.run(60)
        assert all(client.finished for client in clients)

    def _see(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        if isinstance(event, ev.CommandDone):
            self.over[event.id] = now
        self.sent |= {c.id: (now, c) for c in commands if isinstance(c, cmd.Send)}

    def of(self, kind: type, model: str) -> list[cmd.Send]:
        """Commands of this kind for this model; sequences are named after theirs."""
        found = [send for _, send in self.sent.values() if isinstance(send.body, kind)]
        return [s for s in found if model == getattr(s.body, "model", "") or _request(s).startswith(model)]

    def span(self, send: cmd.Send) -> tuple[float, float]:
        return self.sent[send.id][0], self.over[send.id]

    def beside(self, one: cmd.Send, other: cmd.Send) -> bool:
        """Both were out at the same time."""
        (a, b), (c, d) = self.span(one), self.span(other)
        return a < d and c < b


def _request(send: cmd.Send) -> str:
    return send.body.seq.request if isinstance(send.body, cmd.SwapIn | cmd.SwapOut) else ""


@POLICIES
def test_kv_is_swapped_in_while_the_weights_load(policy):
    program = Program(policy)
    loads = {load.id: load for load in program.of(cmd.Load, "m0")}
    swaps = program.of(cmd.SwapIn, "m0")
    assert swaps
    assert not any(set(swap.after) & loads.keys() for swap in swaps)
    assert any(program.beside(swap, load) for swap in swaps for load in loads.values())


@POLICIES
def test_the_next_model_loads_while_the_former_ones_kv_is_swapped_out(policy):
    program = Program(policy)
    switches = 0
    for unload in program.of(cmd.Unload, "m1"):
        at, _ = program.span(unload)
        leaving = [out for out in program.of(cmd.SwapOut, "m1") if program.span(out)[0] == at]
        coming = [load for load in program.of(cmd.Load, "m0") if unload.id in load.after]
        if leaving:
            switches += 1
            assert coming, f"the load waits for {len(leaving)} copies"
            assert not {out.id for out in leaving} & set(coming[0].after)
            assert program.span(coming[0])[0] <= min(program.span(out)[1] for out in leaving)
    assert switches
