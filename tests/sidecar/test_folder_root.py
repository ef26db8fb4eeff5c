"""A directory that the catalog names is read inside the folder that it is said to lie in, by engines and gateways."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sidecar.rig import Rig, config, inside, spec

from aegaeon_proto.v1 import engine_pb2 as engine
from aegaeon_proto.v1 import model_pb2 as pb
from aegaeon_sidecar.domain.errors import SourceError
from aegaeon_sidecar.weights.sources import _directory


def test_a_link_out_of_the_folder_of_models_fails_that_model_with_a_sentence(tmp_path: Path) -> None:
    model = tmp_path / "models" / "one"
    model.mkdir(parents=True)
    (model / "config.json").symlink_to("/etc/hostname")
    source = pb.ModelSource(directory=str(model), root=str(tmp_path / "models"))
    with pytest.raises(SourceError, match=r"source\.directory: .*config\.json leads out of"):
        _directory(source.directory, source.root)
    assert _directory(source.directory, "") == model


async def test_circular_links_fail_their_own_model_where_they_are_read_and_no_other(scheduler: Rig) -> None:
    models = {
        name: spec(name, shutil.copytree(scheduler.models["llama"], scheduler.folder / "models" / name))
        for name in "abc"
    }
    for model in models.values():
        model.source.root = str(scheduler.folder / "models")
    (scheduler.folder / "models" / "a" / "loop").symlink_to("loop")
    (scheduler.folder / "models" / "b" / "config.json").unlink()
    (scheduler.folder / "models" / "b" / "config.json").symlink_to("config.json")
    async with inside(config(scheduler.folder)):
        link = await scheduler.link("a")
        link.send(engine.Catalog(models=models.values()))
        await link.until(lambda: models.keys() <= link.models.keys())
        await link.cached("a", "c")
        await link.until(lambda: link.models["b"].phase == pb.MODEL_PHASE_FAILED)
        await link.done(link.send(engine.Load(model="a", slabs=32)))
