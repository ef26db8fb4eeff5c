"""The simple path: attach, catalog, load, prefill, decode, tokens at the gateway."""

from __future__ import annotations

from sidecar.rig import Rig, config, inside, seq, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb

PROMPT = [5, 17, 23, 42, 8, 99, 140, 7, 61, 12, 33]


async def test_a_prompt_is_prefilled_and_decoded_and_its_tokens_reach_the_gateway(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder)) as engine:
        link = await scheduler.cached([spec("m", scheduler.models["llama"])])
        footprint = link.models["m"].footprint
        load = link.send(pb.Load(model="m", slabs=footprint.weight_slabs))
        link.send(scheduler.open("r", "m", PROMPT, max_tokens=6))
        turn = link.send(
            pb.Turn(model="m", prefill=[pb.PrefillPart(seq=seq("r"), tokens=99)], decode=[seq("r")], steps=9, slabs=4),
            after=[load],
        )
        end = (await link.done(turn)).step_done
        assert (await link.done(load)).done.bytes == footprint.weight_bytes
        assert len(await scheduler.received_tokens("r", 6)) == 6
        assert scheduler.tokens["r", 0][5].finish == mpb.FINISH_REASON_LENGTH
        assert [p.finish for s in link.steps[turn] for p in s.progress if p.finish] == [mpb.FINISH_REASON_LENGTH]
        assert sum(s.steps for s in link.steps[turn]) == 5
        assert sum(s.prefill_tokens for s in link.steps[turn]) == len(PROMPT)
        first, *others = [s for s in link.steps[turn] if s.steps]
        assert (first.steps, first.decode_s) == (1, 0.0)
        assert first.first_s > 0.0
        assert [s.first_s for s in others] == [0.0] * len(others)
        assert sum(s.decode_s for s in others) > 0.0
        assert end.memory.slabs_free == 64 - footprint.weight_slabs
        await link.done(link.send(pb.Unload(model="m")))
        engine.check()
        assert engine.state.kv.device.slabs_free == 64
