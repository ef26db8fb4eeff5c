"""What an engine has under a name says what it is: a Load of another model is refused, and its reports name theirs."""

from __future__ import annotations

from sidecar.rig import Rig, config, inside, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb


def identified(model: mpb.ModelSpec, identity: str) -> mpb.ModelSpec:
    model.identity = identity
    return model


async def test_a_load_of_another_model_than_the_name_stands_for_here_is_refused(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder)) as engine:
        link = await scheduler.cached([identified(spec("m", scheduler.models["llama"]), "former")])
        assert link.models["m"].identity == "former"
        refused = await link.refused(link.send(pb.Load(model="m", slabs=32, identity="new")))
        assert (refused.kind, "the catalog has changed" in refused.reason) == (pb.FAILURE_KIND_UNKNOWN, True)
        for identity in ("", "former"):
            await link.done(link.send(pb.Load(model="m", slabs=32, identity=identity)))
        engine.check()


async def test_another_identity_is_prepared_again_and_the_same_one_is_kept_whatever_else_changes(
    scheduler: Rig,
) -> None:
    async with inside(config(scheduler.folder)) as engine:
        link = await scheduler.cached([identified(spec("m", scheduler.models["llama"]), "former")])
        await link.done(link.send(pb.Load(model="m", slabs=32)))
        model = engine.state.table.models["m"]
        moved = identified(spec("m", scheduler.models["llama"]), "former")
        moved.source.root = str(scheduler.models["llama"].parent)
        link.send(pb.Catalog(models=[moved]))
        await link.done(link.send(pb.Load(model="m", slabs=32)))  # behind it on the stream
        assert (engine.state.table.models["m"] is model, model.resident, model.spec.source.root) == (
            True,
            True,
            moved.source.root,
        )
        link.send(pb.Catalog(models=[identified(spec("m", scheduler.models["qwen3"]), "new")]))
        await link.until(lambda: link.models["m"].identity == "new")
        await link.cached("m")
        assert not engine.state.table.models["m"].resident
        hello = engine.hello(1)
        assert [(one.name, one.identity) for one in hello.catalog] == [("m", "new")]
        engine.check()
