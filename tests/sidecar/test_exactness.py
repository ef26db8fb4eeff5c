"""Tokens under random programs of switches, swaps, hand-offs and cancels equal those of each sequence run alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from sidecar.late import LateBackend
from sidecar.programs import Machine, run_identically
from sidecar.rig import SLAB, Rig

from aegaeon_sidecar.backends.torch import TorchBackend

MANY = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 80)]  # over 10,000 switches and moves
REUSING = range(3)  # conversations continue while their blocks are still cached; not every program has such
SOME = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(101, 120)]
FEW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(201, 220)]
PAIR = Machine(partial(TorchBackend, ranks=2), ranks=2, slab_bytes=SLAB // 2)  # each rank has half of every model


@pytest.mark.parametrize("seed", [0, *MANY])
async def test_any_program_of_switches_swaps_hand_offs_and_cancels_gives_the_tokens_of_running_alone(
    scheduler: Rig, seed: int
) -> None:
    reused = await run_identically(scheduler, scheduler.models, seed, TorchBackend(), TorchBackend())
    assert reused > 0 or seed not in REUSING


@pytest.mark.parametrize("seed", [100, *SOME])
async def test_any_program_with_asynchronous_steps_gives_the_tokens_of_running_alone(scheduler: Rig, seed: int) -> None:
    late = LateBackend(), LateBackend()
    await run_identically(scheduler, scheduler.models, seed, *late)
    assert sum(backend.ahead for backend in late) > 50


@pytest.mark.parametrize("seed", [200, *FEW])
async def test_any_program_on_two_ranks_gives_the_tokens_of_running_alone(
    scheduler: Rig, make_model: Callable[..., Path], seed: int
) -> None:
    models = scheduler.models | {"mistral": make_model("mistral", num_key_value_heads=2)}
    await run_identically(scheduler, models, seed, PAIR.backend(), PAIR.backend(), PAIR)
