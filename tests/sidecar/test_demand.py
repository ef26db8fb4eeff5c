"""A catalog larger than the node's disk: what is not asked for is absent and asks its store nothing, what is asked for
is fetched in place of what was not used for long."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from email.utils import formatdate
from pathlib import Path

import pytest
from sidecar.rig import Link, Rig, config, inside
from sidecar.test_full import serves
from sidecar.test_sources import http, obtain
from sidecar.web import Server, quick_tier, web_settings

from aegaeon_proto.engine.catalog import HttpSource, HubSource, ModelSpec, S3Source
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.domain.errors import DiskFullError, SourceError, TooLargeError
from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.weights.addresses import folder_name, folder_names
from aegaeon_sidecar.weights.fetch_queue import FetchQueue
from aegaeon_sidecar.weights.models import Model
from aegaeon_sidecar.weights.remote import retry_after_s
from aegaeon_sidecar.weights.reservation import Claim, fetched_ahead
from aegaeon_sidecar.weights.retries import Tries
from aegaeon_sidecar.weights.table import ModelTable

TWO = 7_000_000  # bytes; of the models of `web`


def age(disk: Path) -> None:
    """All models in it were used an hour ago."""
    for path in disk.glob("*/"):
        os.utime(path, (time.time() - 3600,) * 2)


def absent(link: Link) -> set[str]:
    return {name for name, state in link.models.items() if state.absent}


def settled(link: Link, names: set[str]) -> bool:
    known = [link.models[name] for name in names & link.models.keys()]
    return len(known) == len(names) and all(one.absent or one.phase == mpb.MODEL_PHASE_CACHED for one in known)


async def test_a_model_without_room_is_absent_until_it_is_asked_for_and_then_takes_the_place_of_the_idle_one(
    web: Server, scheduler: Rig
) -> None:
    web.files = {path.name: path.read_bytes() for path in scheduler.models["llama"].iterdir()}
    model_bytes = sum(map(len, web.files.values()))
    names, memory = {"a", "b", "c"}, {"host_cache_bytes": 4096}
    settings = web_settings(scheduler.folder, 2 * model_bytes + model_bytes // 2)
    sources = {name: mpb.ModelSource(http=mpb.HttpSource(url=web.address.replace("tiny", name))) for name in names}
    async with inside(config(scheduler.folder, **settings, memory=memory)) as engine:
        link = await scheduler.link("a")
        link.send(pb.Catalog(models=[mpb.ModelSpec(name=name, source=sources[name]) for name in sorted(names)]))
        await link.until(lambda: settled(link, names))
        (first,) = absent(link)
        assert "budget is" in link.models[first].reason or "disk tier is full" in link.models[first].reason
        requests = len(web.asked)
        await asyncio.sleep(1.5)  # a failed model would be tried again by then
        assert len(web.asked) == requests
        age(scheduler.folder / "disk")
        link.send(pb.Fetch(model=first))
        await link.until(lambda: settled(link, names) and first not in absent(link))
        await serves(scheduler, link, first, "r")
        await link.until(lambda: absent(link))
        (evicted,) = absent(link)
        await link.refused(link.send(pb.Load(model=evicted, slabs=64)))
        age(scheduler.folder / "disk")
        link.send(pb.Fetch(model=evicted))
        await link.until(lambda: evicted not in absent(link) and settled(link, names))
        await serves(scheduler, link, evicted, "s")
        engine.check()


async def test_a_load_of_what_was_evicted_just_now_fails_once_and_the_model_is_absent(
    web: Server, scheduler: Rig
) -> None:
    web.files = {path.name: path.read_bytes() for path in scheduler.models["llama"].iterdir()}
    settings = web_settings(scheduler.folder) | {"memory": {"host_cache_bytes": 4096}, "heartbeat_s": 30.0}
    async with inside(config(scheduler.folder, **settings)):
        link = await scheduler.link("a")
        source = mpb.ModelSource(http=mpb.HttpSource(url=web.address))
        link.send(pb.Catalog(models=[mpb.ModelSpec(name="m", source=source)]))
        await link.until(lambda: settled(link, {"m"}))
        for path in (scheduler.folder / "disk").glob("*/"):
            shutil.rmtree(path)
        failure = await link.refused(link.send(pb.Load(model="m", slabs=64)))
        assert failure.kind == pb.FAILURE_KIND_UNKNOWN
        await link.until(lambda: absent(link) == {"m"})
        link.send(pb.Fetch(model="m"))
        await link.until(lambda: not absent(link) and settled(link, {"m"}))
        await serves(scheduler, link, "m", "r")


def test_what_is_fetched_ahead_evicts_no_model_of_the_catalog_and_asks_no_server_once_the_disk_is_full(
    web: Server, folder: Path
) -> None:
    disk = quick_tier(folder, TWO)
    remotes = {name: http(web, name) for name in ("first", "second", "third", "fourth")}
    ahead = fetched_ahead(frozenset(folder_name(remote.key) for remote in remotes.values()))
    for name in ("first", "second"):
        disk.obtain(remotes[name], lambda done, total: None, lambda: False, ahead).close()
    age(folder / "disk")
    with pytest.raises(DiskFullError, match="are taken by models in use"):
        disk.obtain(remotes["third"], lambda done, total: None, lambda: False, ahead)
    web.asked.clear()
    with pytest.raises(DiskFullError, match="the disk tier is full"):
        disk.obtain(remotes["fourth"], lambda done, total: None, lambda: False, ahead)
    assert web.asked == []
    obtain(disk, remotes["second"]).close()
    obtain(disk, remotes["fourth"]).close()  # on demand: the idle one goes
    disk.obtain(remotes["second"], lambda done, total: None, lambda: False, ahead).close()


def test_on_demand_a_model_waits_until_another_is_idle_and_one_too_large_fails_at_once(
    web: Server, folder: Path
) -> None:
    disk = quick_tier(folder, TWO)
    for name in ("first", "second"):
        obtain(disk, http(web, name)).close()
    begin = time.monotonic()
    third = disk.obtain(http(web, "third"), lambda d, t: None, lambda: False, Claim(idle_s=1.0, patience_s=60.0))
    assert 0.5 < time.monotonic() - begin < 30
    third.close()
    with pytest.raises(DiskFullError):
        disk.obtain(http(web, "fourth"), lambda d, t: None, lambda: False, Claim(idle_s=60.0, patience_s=1.0))
    small, patient = quick_tier(folder / "small", 1_000_000), Claim(patience_s=1e9)
    with pytest.raises(TooLargeError, match=r"budget is 1000000"):
        small.obtain(http(web), lambda d, t: None, lambda: False, patient)


def test_the_folder_of_a_source_is_known_without_asking_it(web: Server) -> None:
    assert folder_names([HttpSource(web.address + "/")]) == {folder_name(http(web).key)}
    two = folder_names([HubSource("a/b"), HubSource("a/b", credentials_file="/token"), S3Source("b", "/p/")])
    assert len(two) == 3


def test_a_store_is_left_in_peace_for_as_long_as_it_says(web: Server, folder: Path) -> None:
    web.status, web.retry_after = {"config.json": 429}, "120"
    with pytest.raises(SourceError, match="429") as raised:
        obtain(quick_tier(folder), http(web))
    assert raised.value.retry_after_s == 120
    assert [name for name, _ in web.asked].count("config.json") <= 1
    tries = Tries(far=True, jitter=lambda: 1.0)
    assert not tries.due(0.0, (), transient=True, least_s=120.0)
    assert not tries.due(119.0, (), transient=True, least_s=120.0)
    assert tries.due(121.0, (), transient=True, least_s=120.0)


@pytest.mark.parametrize(
    ("header", "least_s", "most_s"),
    [(None, 0, 0), ("", 0, 0), ("7", 7, 7), ("999999", 3600, 3600), ("soon", 0, 0), ("-3", 0, 0)],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, least_s: float, most_s: float) -> None:
    assert least_s <= retry_after_s(header) <= most_s
    assert 50 < retry_after_s(formatdate(time.time() + 60, usegmt=True)) <= 60


def test_models_that_wait_for_others_say_how_many_and_how_long() -> None:
    reported: list[Model] = []
    line = FetchQueue(ModelTable(Monitor()), reported.append)
    models = [Model(ModelSpec(name, HttpSource("http://h/m")), on_demand=True) for name in "abc"]
    for model in models:
        line.join(model)
    assert [model.state().reason for model in models] == [
        "",
        "1 models are fetched before it",
        "2 models are fetched before it",
    ]
    models[0].pace.note(0, 100, now_s=0.0)
    models[0].pace.note(50, 100, now_s=10.0)
    line.advance(models[0])
    assert [model.state().remaining_s for model in models] == [10.0, 10.0, 10.0]
    line.leave(models[0], fetched=True)
    assert reported[-2:] == models[1:]
    assert models[1].state().reason == ""
    assert models[2].wait_s == 2 * models[1].wait_s > 0
