"""What a GPU's decodes do, by Triton's interpreter, inside an engine: its steps are launched ahead of their tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from sidecar.rig import Counted, Rig, config, inside, rig, seq, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends.torch import TorchBackend

pytestmark = pytest.mark.usefixtures("few_rows")

PROMPTS = {"greedy": [5, 17, 23, 42, 8], "drawn": [99, 140, 7], "stopped": [61, 12, 33, 4]}
LENGTH = 7
NO_TOKEN = 10_000


async def outputs(scheduler: Rig, model: Path, backend: TorchBackend, stop: int) -> list[list[int]]:
    """Three sequences in one turn: one greedy, one drawn, one that ends by a stop id where it meets it."""
    async with inside(config(scheduler.folder), backend) as engine:
        link = await scheduler.cached([spec("m", model)])
        load = link.send(pb.Load(model="m", slabs=32))
        for name, prompt in PROMPTS.items():
            sampling = mpb.Sampling(top_p=1, repetition_penalty=1, temperature=0.9 * (name == "drawn"), seed=3)
            stops = [stop] if name == "stopped" else []
            link.send(scheduler.open(name, "m", prompt, max_tokens=LENGTH, sampling=sampling, stop_ids=stops))
        names = [seq(name) for name in PROMPTS]
        parts = [pb.PrefillPart(seq=name, tokens=99) for name in names]
        await link.done(link.send(pb.Turn(model="m", prefill=parts, decode=names, steps=99, slabs=8), after=[load]))
        await link.done(link.send(pb.Unload(model="m")))
        engine.check()
        assert engine.state.kv.device.slabs_free == engine.state.kv.device.pool.total
        return [await scheduler.received_tokens(name, 1) for name in PROMPTS]


async def test_an_engine_with_asynchronous_steps_gives_the_tokens_of_a_synchronous_one(
    folder: Path, tiny_models: dict[str, Path]
) -> None:
    seen = []
    stop, backend = NO_TOKEN, TorchBackend()
    for paged in (False, False, True):  # the first run tells what to stop at
        if paged:
            backend = Counted(paged=True)
        async with rig(folder) as scheduler:
            seen.append(await outputs(scheduler, tiny_models["llama"], backend, stop))
        stop = seen[0][2][3]
    assert len(seen[1][2]) <= 4
    assert seen[2] == seen[1]
    assert isinstance(backend, Counted)
    assert len([inputs for inputs in backend.ahead if inputs]) >= LENGTH - 3
