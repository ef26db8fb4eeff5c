"""What a tenant's files can do to the process that reads them: each fails its own model, in bounded memory and time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sidecar.rig import Rig, config, inside, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb


def amended(**fields: object) -> Callable[[Path], None]:
    def amend(directory: Path) -> None:
        file = directory / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return amend


def rope(**fields: float) -> Callable[[Path], None]:
    return amended(rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, **fields})


def huge(name: str) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / "model.safetensors").unlink()
        (directory / name).unlink(missing_ok=True)
        with (directory / name).open("wb") as file:
            file.truncate(1 << 40)

    return write


def pipe(name: str) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        (directory / name).unlink()
        os.mkfifo(directory / name)

    return make


def surrogate_tensor(directory: Path) -> None:
    """JSON may escape half of a surrogate pair, which UTF-8 cannot hold; the reason that quotes it is sent escaped."""
    (directory / "model.safetensors").rename(directory / "weights.safetensors")
    weights = {"weight_map": {"model.\ud800.weight": "weights.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(weights))


FILES = {
    "a tensor whose name is half of a surrogate pair": surrogate_tensor,
    "a base that its rope divides by": rope(rope_theta=1.0),
    "a rope beyond floats": rope(beta_fast=1e-308),
    "a context that no table holds": amended(max_position_embeddings=2**31 - 1),
    "a config.json of a terabyte": huge("config.json"),
    "an index of a terabyte": huge("model.safetensors.index.json"),
    "a pipe for config.json": pipe("config.json"),
    "a pipe for weights": pipe("model.safetensors"),
}


@pytest.mark.parametrize("what", FILES)
async def test_files_that_crash_or_block_their_reader_fail_their_own_model(what: str, scheduler: Rig) -> None:
    bad = shutil.copytree(scheduler.models["llama"], scheduler.folder / "bad")
    FILES[what](bad)
    async with inside(config(scheduler.folder)):
        link = await scheduler.link("a")
        link.send(pb.Catalog(models=[spec("bad", bad), spec("good", scheduler.models["llama"])]))
        await link.until(lambda: {"bad", "good"} <= link.models.keys())
        await link.cached("good")
        assert link.models["bad"].phase == mpb.MODEL_PHASE_FAILED
        assert str(scheduler.folder) not in link.models["bad"].reason
