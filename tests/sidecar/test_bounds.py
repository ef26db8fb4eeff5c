"""Bounds on a source: bytes of the disk, time, threads; and the order of eviction."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sidecar.mounts import small_tmpfs
from sidecar.rig import Rig, config, inside
from sidecar.test_sources import contents, http, obtain
from sidecar.web import FILES, WEIGHTS, Server, outbound, quick_tier, remote, web_settings

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.domain.errors import DiskFullError, FillCancelledError, SourceError
from aegaeon_sidecar.weights.boundary import Guarded
from aegaeon_sidecar.weights.disk import DiskTier
from aegaeon_sidecar.weights.remote import BrokenOffError, RemoteFile

BUDGET = 5_000_000  # a model and a half


def taken(folder: Path) -> int:
    """Bytes of all files, as a person would count them."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_file_without_size_and_end_never_takes_more_than_the_budget(web: Server, folder: Path, name: str) -> None:
    web.endless = {name}
    web.sizes = False
    web.files[name] = WEIGHTS[:65536]
    most = 0

    def watch(done: int, total: int) -> None:
        nonlocal most
        most = max(most, taken(folder / "disk"))

    with pytest.raises(DiskFullError, match=rf"budget is {BUDGET}"):
        obtain(quick_tier(folder, BUDGET), http(web), watch)
    assert BUDGET // 2 < most <= BUDGET
    assert sum(path.stat().st_size for path in folder.rglob("*.part")) == 0  # it is not kept for a next try
    web.endless = set()
    obtain(quick_tier(folder, BUDGET), http(web, "other")).close()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(budget=st.integers(3_000_000, 3_200_000), sizes=st.booleans())
def test_the_budget_is_exact_to_the_byte(web: Server, folder: Path, budget: int, sizes: bool) -> None:
    web.sizes = sizes
    fresh = folder / f"fresh-{len(list(folder.iterdir()))}"
    fresh.mkdir()
    most = 0

    def watch(done: int, total: int) -> None:
        nonlocal most
        most = max(most, taken(fresh))

    with suppress(DiskFullError):
        obtain(quick_tier(fresh, budget), http(web), watch).close()
    assert max(most, taken(fresh)) <= budget


def test_what_is_reserved_ahead_is_given_back(web: Server, folder: Path) -> None:
    web.sizes = False
    disk = quick_tier(folder, 1 << 30)
    obtain(disk, http(web)).close()
    assert disk.used_bytes() == taken(folder / "disk")


def test_a_file_that_is_longer_than_promised_is_not_written_further(web: Server, folder: Path) -> None:
    web.promised = {"model.safetensors": 1000}
    with pytest.raises(SourceError, match="sends more than the announced 1000 bytes"):
        obtain(quick_tier(folder), http(web))
    assert taken(folder / "disk") < 10_000


def test_an_index_that_names_endless_files_is_refused(web: Server, folder: Path) -> None:
    names = ",".join(f'"a": "{number}.safetensors"' for number in range(2000))
    web.files["model.safetensors.index.json"] = f"{{{names}}}".encode()
    with pytest.raises(SourceError, match=r"lists 20\d\d files of a model; the limit is 1000"):
        obtain(quick_tier(folder), http(web))


@pytest.mark.parametrize("name", ["SHA256SUMS", "model.safetensors.index.json"])
def test_endless_lists_are_refused(web: Server, folder: Path, name: str) -> None:
    web.files[name] = b" " * (1 << 20)
    web.endless = {name}
    with pytest.raises(SourceError, match=r"has more than \d+ bytes, the limit for it"):
        obtain(quick_tier(folder), http(web))


def test_the_tiers_metadata_files_are_not_files_of_a_model(web: Server, folder: Path) -> None:
    web.files["model.safetensors.index.json"] = b'{"a": ".manifest.safetensors", "b": "..safetensors"}'
    obtain(quick_tier(folder), http(web)).close()
    assert web.sent(".manifest.safetensors") == web.sent("..safetensors") == 0


# ---- time ----------------------------------------------------------------------------------------------------------


def test_slow_weights_end_with_a_sentence(web: Server, folder: Path) -> None:
    web.dripping = "tiny"
    web.files = FILES | {"config.json": b"{}" + b" " * 1000}
    with pytest.raises(SourceError, match=r"bytes per second over .* s; the minimum is 1000000"):
        obtain(quick_tier(folder), remote(web.address, min_bytes_per_s=1e6, window_s=0.5))


class Dribbling:
    """A source that breaks off after each byte."""

    address = "http://h/m"

    def files(self) -> list[RemoteFile]:
        return [RemoteFile("model.safetensors", 10**9, "")]

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        yield b"x"
        raise BrokenOffError("h: broke off")


def test_a_source_that_breaks_off_after_every_byte_fails(folder: Path) -> None:
    disk = quick_tier(folder, 1 << 31)
    with pytest.raises(SourceError, match="broke off; check the network"):
        obtain(disk, Guarded("h", outbound().client(), "", Dribbling))
    assert taken(folder / "disk") < 10_000


async def test_slow_sources_do_not_block_others(web: Server, scheduler: Rig) -> None:
    """Four of a server that drips, more of it that wait, and one of another server."""
    from sidecar.web import serving

    web.dripping = "slow"
    with serving() as good:
        good.files = {path.name: path.read_bytes() for path in scheduler.models["llama"].iterdir()}
        urls = [f"{web.address}/{number}/slow" for number in range(12)]
        slow = [
            mpb.ModelSpec(name=f"slow-{number}", source=mpb.ModelSource(http=mpb.HttpSource(url=url)))
            for number, url in enumerate(urls)
        ]
        fast = mpb.ModelSpec(name="fast", source=mpb.ModelSource(http=mpb.HttpSource(url=good.address)))
        async with inside(config(scheduler.folder, **web_settings(scheduler.folder))):
            link = await scheduler.link("a")
            link.send(pb.Catalog(models=[*slow, fast]))
            await link.cached("fast")
            assert link.models["slow-0"].phase == mpb.MODEL_PHASE_FETCHING
            web.released.set()


# ---- eviction ------------------------------------------------------------------------------------------------------


def partial(web: Server, folder: Path, name: str, budget: int = 1 << 30) -> Path:
    """A fetch that broke off; its folder."""
    web.cuts = [1_000_000, *[0] * 6]
    before = set((folder / "disk").glob("*/")) if (folder / "disk").exists() else set()
    with pytest.raises(SourceError):
        obtain(quick_tier(folder, budget), http(web, name))
    web.cuts = []
    (made,) = set((folder / "disk").glob("*/")) - before
    return made


def test_interrupted_fetches_are_evicted_first_the_oldest_before_the_others(web: Server, folder: Path) -> None:
    budget = 10_000_000  # three models
    complete = obtain(quick_tier(folder, budget), http(web, "complete"))
    complete.close()
    older = partial(web, folder, "older", budget)
    newer = partial(web, folder, "newer", budget)
    os.utime(complete.directory, (1, 1))  # used longest ago, and stays
    os.utime(older, (2, 2))
    obtain(quick_tier(folder, budget), http(web, "third")).close()
    assert (complete.directory.exists(), older.exists(), newer.exists()) == (True, False, True)
    assert contents(complete) == FILES
    assert quick_tier(folder, budget).used_bytes() <= budget


def test_a_fetch_that_cannot_fit_evicts_nothing(web: Server, folder: Path) -> None:
    """It would at every try, and so empty the disk of all that is not in use just now."""
    tier = quick_tier(folder, 2 * BUDGET)
    used = obtain(tier, http(web, "used"))
    obtain(tier, http(web, "unused")).close()
    before = taken(folder / "disk")
    web.promised["model.safetensors"] = 2 * BUDGET - len(WEIGHTS) // 2
    with pytest.raises(DiskFullError, match="taken by models in use"):
        obtain(tier, http(web, "other"))
    used.close()
    assert taken(folder / "disk") == before


def test_a_doubted_copy_keeps_no_other_sidecar_waiting(web: Server, folder: Path) -> None:
    tier = quick_tier(folder)
    stored = obtain(tier, http(web))
    stored.doubt(damaged=False)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        assert len(waits) < 3, "it waits for what is doubted"

    obtain(DiskTier(folder / "disk", 1 << 30, wait), http(web)).close()
    stored.close()


def test_on_a_full_disk_interrupted_fetches_are_evicted(web: Server, tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "small", "4700k") as small:
        first = partial(web, small, "first")
        second = partial(web, small, "second")
        os.utime(first, (1, 1))
        obtain(quick_tier(small), http(web, "third")).close()
        assert (first.exists(), second.exists()) == (False, True)


def test_a_disk_that_others_fill_meanwhile_triggers_eviction(web: Server, tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "small", "6m") as small:
        broken = partial(web, small, "broken")
        others = small / "of-others"

        def fill(done: int, total: int) -> None:
            if not others.exists():
                with suppress(OSError), others.open("wb", buffering=0) as file:
                    for _ in range(40):
                        file.write(b"x" * 65536)

        obtain(quick_tier(small), http(web, "third"), fill).close()
        assert not broken.exists()


def test_a_backoff_ends_soon_after_the_fetch_is_cancelled(folder: Path) -> None:
    slept: list[float] = []
    disk = DiskTier(folder / "disk", 1 << 31, slept.append)
    with pytest.raises(FillCancelledError):
        obtain(disk, Guarded("h", outbound().client(), "", Dribbling), cancelled=lambda: sum(slept) > 5.0)
    assert max(slept) <= 0.5
    assert sum(slept) < 6.0
