"""Files that change under a sidecar: what is served is what was served, or the model fails with the true reason."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from sidecar.rig import PATIENCE_S, Link, Rig, config, inside, scrub, spec
from sidecar.test_cache_engine import resident_bytes
from sidecar.web import Server, web_settings

from aegaeon_proto.engine.catalog import (
    DirectorySource,
    HttpSource,
    HubSource,
    ModelPhase,
    ModelSpec,
    ModelState,
    S3Source,
    Source,
)
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.domain.errors import SourceError, WeightsError
from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.engine.engine import Engine
from aegaeon_sidecar.weights import retries
from aegaeon_sidecar.weights.models import Adapter, Model
from aegaeon_sidecar.weights.phases import Phases
from aegaeon_sidecar.weights.retries import Tries, folder_state
from aegaeon_sidecar.weights.sources import Located
from aegaeon_sidecar.weights.table import ModelTable

NOTHING = {"host_cache_bytes": 1000}  # holds no model
WEIGHTS = "model.safetensors"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed models are looked at ten times as often."""
    monkeypatch.setattr(retries, "LOOK_S", retries.LOOK_S / 10)
    monkeypatch.setattr(retries, "FIRST_PAUSE_S", {far: pause_s / 10 for far, pause_s in retries.FIRST_PAUSE_S.items()})


@pytest.fixture
def own_model(folder: Path, tiny_models: dict[str, Path], often: None) -> Path:
    """A model whose files may be changed."""
    return shutil.copytree(tiny_models["llama"], folder / "mine")


@dataclass
class Sidecar:
    """One that serves `m`, bypassing the host cache by default."""

    engine: Engine
    link: Link

    async def load(self) -> bytes:
        """Read it anew; what is on the device then."""
        await self.unload()
        await self.link.done(self.link.send(pb.Load(model="m", slabs=32)))
        return resident_bytes(self.engine, "m")

    async def refused(self) -> str:
        """Read it again, which must fail it; returns the reason that is reported."""
        await self.unload()
        failed = await self.link.refused(self.link.send(pb.Load(model="m", slabs=32)))
        state = self.link.models["m"]
        assert state.phase == mpb.MODEL_PHASE_FAILED
        assert state.reason in failed.reason
        assert failed.memory.slabs_free + failed.memory.slabs_kept >= 64
        return state.reason

    async def unload(self) -> None:
        await self.link.outcome(self.link.send(pb.Unload(model="m")))
        scrub(self.engine)

    async def phase(self, phase: mpb.ModelPhase.ValueType) -> None:
        await self.link.until(lambda: self.link.models["m"].phase == phase)


@asynccontextmanager
async def serving(scheduler: Rig, model: mpb.ModelSpec, **settings: object) -> AsyncIterator[Sidecar]:
    async with inside(config(scheduler.folder, **({"memory": NOTHING} | settings))) as engine:
        link = await scheduler.cached([model])
        yield Sidecar(engine, link)


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def zero(file: Path) -> None:
    """In place; all that its owner can set stays."""
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(before.st_size // 2)
        opened.write(bytes(1000))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def truncate(file: Path) -> None:
    os.truncate(file, 5000)


def other_version(file: Path) -> None:
    made = file.with_suffix(".new")
    made.write_bytes(file.read_bytes()[:-4] + b"\x01\x02\x03\x04")
    made.rename(file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (zero, "model.safetensors: was written to"),
        (truncate, "model.safetensors: has 5000 bytes, had"),
        (Path.unlink, "model.safetensors: missing"),
        (other_version, "model.safetensors: is another file"),
    ],
)
async def test_weights_that_changed_fail_the_model_at_once_and_put_back_are_loaded_by_themselves(
    scheduler: Rig, own_model: Path, change: Callable[[Path], None], words: str
) -> None:
    content = (own_model / WEIGHTS).read_bytes()
    async with serving(scheduler, spec("m", own_model)) as sidecar:
        expected = await sidecar.load()
        change(own_model / WEIGHTS)
        reason = await sidecar.refused()
        assert reason.startswith("m: weights changed while served: ")
        assert words in reason
        assert "loaded again by itself" in reason
        assert str(scheduler.folder) not in reason
        refused = await sidecar.link.refused(sidecar.link.send(pb.Load(model="m", slabs=32)))
        assert words in refused.reason
        (own_model / WEIGHTS).write_bytes(content)
        await sidecar.phase(mpb.MODEL_PHASE_CACHED)
        assert await sidecar.load() == expected


async def test_a_model_with_a_place_in_the_host_cache_is_served_from_it_whatever_becomes_of_its_files(
    scheduler: Rig, own_model: Path
) -> None:
    async with serving(scheduler, spec("m", own_model), memory={}) as sidecar:
        expected = await sidecar.load()
        zero(own_model / WEIGHTS)
        assert await sidecar.load() == expected
        shutil.rmtree(own_model)
        assert await sidecar.load() == expected
        assert sidecar.link.models["m"].phase == mpb.MODEL_PHASE_CACHED


async def test_files_that_were_touched_or_copied_are_read_once_more_and_stay_served(
    scheduler: Rig, own_model: Path
) -> None:
    async with serving(scheduler, spec("m", own_model)) as sidecar:
        expected = await sidecar.load()
        states = [sidecar.engine.state.table.models["m"].files]
        for touched in (WEIGHTS, "config.json"):
            os.utime(own_model / touched)
            assert await sidecar.load() == expected
            states.append(sidecar.engine.state.table.models["m"].files)
            assert states[-1] != states[-2]
        copy = shutil.copytree(own_model, own_model.with_name("copy"))
        shutil.move(own_model, own_model.with_name("former"))
        shutil.move(copy, own_model)
        assert await sidecar.load() == expected


async def test_another_config_fails_the_model(scheduler: Rig, own_model: Path) -> None:
    async with serving(scheduler, spec("m", own_model)) as sidecar:
        await sidecar.load()
        text = (own_model / "config.json").read_text()
        (own_model / "config.json").write_text(text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05') + "\n")
        assert "config.json: differs from the served one" in await sidecar.refused()
        (own_model / "config.json").write_text(text)
        await sidecar.phase(mpb.MODEL_PHASE_CACHED)


async def test_changed_weights_are_served_after_an_apply_and_not_before(scheduler: Rig, own_model: Path) -> None:
    catalog = [spec("m", own_model)]
    async with serving(scheduler, catalog[0]) as sidecar:
        before = await sidecar.load()
        zero(own_model / WEIGHTS)
        await sidecar.refused()
        sidecar.link.send(pb.Catalog(models=[*catalog, spec("another", own_model)]))
        await sidecar.link.until(lambda: "another" in sidecar.link.models)
        await sidecar.link.cached("another")
        assert "model.safetensors: its weights differ from those that were served" in await sidecar.refused()
        sidecar.link.send(pb.Catalog(models=catalog, retry=True))
        await sidecar.phase(mpb.MODEL_PHASE_CACHED)
        assert await sidecar.load() != before


async def test_a_model_that_cannot_be_loaded_again_and_again_is_failed_for_a_while(
    scheduler: Rig, own_model: Path
) -> None:
    async with serving(scheduler, spec("m", own_model)) as sidecar:
        for expected in (mpb.MODEL_PHASE_CACHED,) * 3 + (mpb.MODEL_PHASE_FAILED,):
            await sidecar.link.refused(sidecar.link.send(pb.Load(model="m", slabs=1)))
            assert sidecar.link.models["m"].phase == expected
        assert "1 were granted" in sidecar.link.models["m"].reason
        await sidecar.phase(mpb.MODEL_PHASE_CACHED)
        await sidecar.load()


async def test_a_model_that_was_never_servable_is_served_once_its_files_are(scheduler: Rig, own_model: Path) -> None:
    shutil.move(own_model, scheduler.folder / "away")
    async with inside(config(scheduler.folder)):
        link = await scheduler.link("a")
        link.send(pb.Catalog(models=[spec("m", own_model)]))
        await link.until(lambda: "m" in link.models and link.models["m"].phase == mpb.MODEL_PHASE_FAILED)
        assert "not a directory on this machine" in link.models["m"].reason
        shutil.move(scheduler.folder / "away", own_model)
        await link.until(lambda: link.models["m"].phase == mpb.MODEL_PHASE_CACHED)


async def test_a_file_of_the_disk_tier_that_was_changed_is_fetched_anew(
    web: Server, scheduler: Rig, own_model: Path
) -> None:
    web.files = files_of(own_model)
    model = mpb.ModelSpec(name="m", source=mpb.ModelSource(http=mpb.HttpSource(url=web.address)))
    async with serving(scheduler, model, **web_settings(scheduler.folder)) as sidecar:
        expected = await sidecar.load()
        (file,) = (scheduler.folder / "disk").glob(f"*/{WEIGHTS}")
        zero(file)
        reason = await sidecar.refused()
        assert "weights changed while served: model.safetensors" in reason
        assert str(scheduler.folder) not in reason
        await sidecar.phase(mpb.MODEL_PHASE_CACHED)
        assert await sidecar.load() == expected


async def test_a_disk_that_cannot_be_read_for_a_while_fails_the_model_for_a_while(
    scheduler: Rig, own_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(scheduler, spec("m", own_model)) as sidecar:
        expected = await sidecar.load()
        real, broken = os.open, [True]

        def failing(path: object, *given: int, **named: int | None) -> int:
            if broken[0] and str(path).endswith(WEIGHTS):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return real(path, *given, **named)  # type: ignore[call-overload, no-any-return]

        monkeypatch.setattr("os.open", failing)
        reason = await sidecar.refused()
        assert "model.safetensors: cannot be read: Input/output error" in reason
        broken[0] = False
        await sidecar.phase(mpb.MODEL_PHASE_CACHED)
        assert await sidecar.load() == expected


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (DirectorySource("/models/a"), "/models/a"),
        (HubSource("org/a", "x"), "org/a"),
        (S3Source("b", "a/c"), "s3://b/a/c"),
        (HttpSource("https://host/a"), "https://host/a"),
    ],
)
def test_a_reason_names_files_and_the_source_as_it_was_written_and_no_folder_of_the_machine(
    source: Source, words: str
) -> None:
    reported: list[ModelState] = []
    phases = Phases(
        ModelTable(Monitor()), reported.append, {Path("/var/disk"): "the disk tier", Path("/var"): "the machine"}
    )
    model = Model(ModelSpec("m", source), located=Located(Path("/var/disk/0123")))
    phases.failed(model, WeightsError("/var/disk/0123/a.safetensors: missing"))
    phases.failed(model, SourceError("/var/disk/0123: /var/disk is full, /var/run is not"))
    assert [state.reason for state in reported] == [
        "m: a.safetensors: missing",
        f"m: {words}: the disk tier is full, the machine/run is not",
    ]


def tries(*, far: bool) -> Tries:
    return Tries(far, lambda: 1.0)


def test_a_failed_folder_is_retried_once_and_then_after_it_changed_and_settled() -> None:
    made = tries(far=False)
    assert [made.due(now, ("a",), transient=False) for now in (10.0, 10.5, 11.0)] == [False, False, True]
    made.begin()
    assert not any(made.due(float(now), ("a",), transient=False) for now in range(12, 100))
    assert [made.due(100.0 + n, (look,), transient=False) for n, look in enumerate("bcdd")] == [False] * 3 + [True]


@pytest.mark.parametrize("far", [True, False])
def test_retries_back_off_to_their_maximum_while_nothing_changes(far: bool) -> None:
    made, at = tries(far=far), []
    for now in range(1, 3000):
        if made.due(float(now), (), transient=True):
            made.begin()
            at.append(now)
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == retries.MOST_PAUSE_S[far] + 1  # from the look that found it failed
    assert len(at) < 3000 / retries.MOST_PAUSE_S[far] + 10


def test_long_failing_retries_become_rarer() -> None:
    """Each may fetch all of a far source: its pauses grow though it is not failed anew for longer than models calm."""
    source = ModelSpec("m", HttpSource("http://h/m"))
    table = ModelTable(Monitor())
    table.models["m"] = Model(source, ModelPhase.FAILED)
    at: list[int] = []

    def again(model: Model) -> None:
        table.models["m"] = Model(source, model.phase, trying=True)
        at.append(now)

    watch = retries.Retries(table, again, lambda _: None)
    for now in range(1, 6 * 3600):
        if at and now == at[-1] + 300:
            table.models["m"] = Model(source, ModelPhase.FAILED)
        watch._round(float(now))
    assert 10 < len(at) < 20
    assert at[-1] - at[-2] > retries.WRONG_PAUSE_S * 0.8


@pytest.mark.parametrize("far", [False, True])
def test_a_kind_of_model_that_is_not_served_is_tried_again_when_its_files_change_alone(
    far: bool, tmp_path: Path
) -> None:
    table, at = ModelTable(Monitor()), list[int]()
    source: Source = HttpSource("http://h/m") if far else DirectorySource(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    table.models["m"] = Model(ModelSpec("m", source), ModelPhase.FAILED, permanent=True)
    now = 0

    def again(model: Model | Adapter) -> None:
        at.append(now)

    watch = retries.Retries(table, again, lambda _: None)
    for now in range(1, 3600):
        watch._round(float(now))
    assert at == []
    (tmp_path / "config.json").write_text("{ }")
    for now in range(3600, 3700):
        watch._round(float(now))
    assert bool(at) is not far


def test_a_source_that_was_corrected_does_not_wait_for_the_next_try_of_the_former_one() -> None:
    table, at = ModelTable(Monitor()), list[int]()
    wrong, unavailable = (ModelSpec("m", HttpSource(f"http://h/{folder}")) for folder in ("none", "m"))
    table.models["m"] = Model(wrong, ModelPhase.FAILED)
    now = 0

    def again(model: Model | Adapter) -> None:
        at.append(now)

    watch = retries.Retries(table, again, lambda _: None)
    for now in range(1, 3600):
        watch._round(float(now))
    table.models["m"] = Model(unavailable, ModelPhase.FAILED, transient=True)
    for now in range(3600, 3620):
        watch._round(float(now))
    assert at[-1] >= 3600


def test_a_folders_state_tells_a_change_of_any_file_of_a_model_and_why_a_folder_cannot_be_read(tmp_path: Path) -> None:
    assert folder_state(tmp_path / "nowhere") == (errno.ENOENT,)
    (reason,) = folder_state(tmp_path / "no\0path")
    assert "embedded null" in str(reason)  # byte or character: the words are Python's, and changed
    seen = [folder_state(tmp_path)]
    for name in ("config.json", WEIGHTS, "model.safetensors.index.json"):
        (tmp_path / name).write_text("x")
        seen.append(folder_state(tmp_path))
    (tmp_path / "README.md").write_text("x")
    assert folder_state(tmp_path) == seen[-1]
    zero(tmp_path / WEIGHTS)
    assert len({*seen, folder_state(tmp_path)}) == 5
    assert max(retries.MOST_PAUSE_S[False], 1) < PATIENCE_S  # so that the tests above may wait for any try
