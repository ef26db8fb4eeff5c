"""The simple path: attach, catalog, load, prefill, hand-off, decode, tokens at the gateway."""

from __future__ import annotations

from pathlib import Path

from sidecar.rig import Rig, config, inside, seq, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb

PROMPT = [5, 17, 23, 42, 8, 99, 140, 7, 61, 12, 33]


async def test_a_prompt_is_prefilled_and_decoded_and_its_tokens_reach_the_gateway(
    scheduler: Rig, folder: Path, tiny_models: dict[str, Path]
) -> None:
    async with inside(config(folder)) as engine:
        link = await scheduler.link("a")
        link.send(pb.Catalog(models=[spec("m", tiny_models["llama"])]))
        await link.until(lambda: "m" in link.models)
        await link.cached("m")
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


async def test_a_sequence_handed_from_one_sidecar_to_another_goes_on_as_if_it_had_stayed(
    scheduler: Rig, folder: Path, tiny_models: dict[str, Path]
) -> None:
    async with inside(config(folder, "p")) as source, inside(config(folder, "d")) as target:
        p, d = await scheduler.link("p"), await scheduler.link("d")
        for link in (p, d):
            link.send(pb.Catalog(models=[spec("m", tiny_models["qwen3"])]))
            await link.until(lambda link=link: "m" in link.models)
            await link.cached("m")
            link.send(pb.Load(model="m", slabs=32))
        for name in ("moved", "stayed"):
            p.send(scheduler.open(name, "m", PROMPT, max_tokens=20))
        parts = [pb.PrefillPart(seq=seq(name), tokens=99) for name in ("moved", "stayed")]
        first = p.send(pb.Turn(model="m", prefill=parts, slabs=8))
        out = p.send(pb.SwapOut(seq=seq("moved"), epoch=1), after=[first])
        handle = (await p.done(out)).done.handle
        d.send(scheduler.open("moved", "m", PROMPT, max_tokens=20))
        adopt = d.send(pb.Adopt(seq=seq("moved"), epoch=1, handle=handle, slabs=8))
        d.send(pb.Turn(model="m", decode=[seq("moved")], steps=30, slabs=8), after=[adopt])
        p.send(pb.Turn(model="m", decode=[seq("stayed")], steps=30, slabs=8))
        await d.done(adopt)
        p.send(pb.Close(seq=seq("moved"), epoch=1))
        assert await scheduler.received_tokens("moved", 20) == await scheduler.received_tokens("stayed", 20)
        source.check()
        target.check()
        assert source.state.kv.host.slabs_free == 64
