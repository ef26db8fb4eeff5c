"""Models from web servers: resumed at any byte, checked, kept on disk below a budget, faults reported."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sidecar.mounts import small_tmpfs
from sidecar.rig import Rig, config, inside, spec
from sidecar.web import FILES, WEIGHTS, Server, outbound, quick_tier, remote, web_settings

from aegaeon_proto.engine.catalog import HttpSource
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.domain.errors import DiskFullError, FillCancelledError, SourceError
from aegaeon_sidecar.weights.boundary import Guarded
from aegaeon_sidecar.weights.disk import DiskTier, Stored
from aegaeon_sidecar.weights.remote import ADAPTER_FILES, parse_sums
from aegaeon_sidecar.weights.sources import Sources

FETCHER = """
import sys, time
from pathlib import Path
from aegaeon_proto.engine.catalog import HttpSource
from aegaeon_proto.outbound.client import Outbound
from aegaeon_proto.outbound.policy import EVERYWHERE, Policy
from aegaeon_sidecar.weights.boundary import Guarded
from aegaeon_sidecar.weights.disk import DiskTier
from aegaeon_sidecar.weights.sources import remote_of
def progress(done, total):
    if done > 1_500_000:
        print("half", flush=True)
        time.sleep(60)
source = HttpSource(sys.argv[2])
remote = remote_of(source, Outbound(Policy(EVERYWHERE)).client(), False)
DiskTier(Path(sys.argv[1]), 1 << 30, time.sleep).obtain(remote, progress, bool)
"""


def http(web: Server, name: str = "tiny") -> Guarded:
    return remote(web.address.replace("tiny", name))


def obtain(
    disk: DiskTier,
    remote: Guarded,
    progress: Callable[[int, int], None] = lambda done, total: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Stored:
    return disk.obtain(remote, progress, cancelled)


def contents(stored: Stored) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in stored.directory.iterdir() if not path.name.startswith(".")}


def test_a_folder_on_a_web_server_is_fetched_once_and_then_found(web: Server, folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    stored = obtain(quick_tier(folder), http(web), lambda done, total: seen.append((done, total)))
    assert contents(stored) == FILES
    assert seen == sorted(seen)
    assert seen[-1] == (sum(map(len, FILES.values())),) * 2
    asked = len(web.asked)
    again = obtain(quick_tier(folder), http(web))
    assert (again.directory, len(web.asked)) == (stored.directory, asked)
    stored.close()
    again.close()


def test_a_vocabulary_of_lines_is_fetched_from_a_web_server_as_gateways_read_it(web: Server, folder: Path) -> None:
    web.files["vocab.txt"] = b"[UNK]\nthe\n"
    stored = obtain(quick_tier(folder), http(web))
    assert contents(stored)["vocab.txt"] == b"[UNK]\nthe\n"
    stored.close()


def test_what_says_how_a_model_pools_is_fetched_in_its_own_folder(web: Server, folder: Path) -> None:
    web.files |= {"modules.json": b"[]", "1_Pooling/config.json": b'{"pooling_mode_lasttoken": true}'}
    stored = obtain(quick_tier(folder), http(web))
    pooling = stored.directory / "1_Pooling" / "config.json"
    assert pooling.read_bytes() == web.files["1_Pooling/config.json"]
    assert [path.name for path in pooling.parent.iterdir()] == ["config.json"]
    assert (stored.directory / "modules.json").exists()
    stored.close()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, len(WEIGHTS) - 1), max_size=4), ranges=st.booleans())
def test_a_download_interrupted_at_any_byte_resumes_there(
    web: Server, folder: Path, cuts: list[int], ranges: bool
) -> None:
    web.cuts, web.ranges = list(cuts), ranges
    web.asked.clear()
    fresh = folder / f"fresh-{len(list(folder.iterdir()))}"
    fresh.mkdir()
    stored = obtain(quick_tier(fresh), http(web))
    assert contents(stored) == FILES
    starts = [start for name, start in web.asked if name == "model.safetensors"]
    assert starts == sorted(starts)
    stored.close()


def test_an_unreachable_server_fails_the_fetch_and_the_next_attempt_resumes(web: Server, folder: Path) -> None:
    web.cuts = [1_500_000, *[0] * 5]
    with pytest.raises(SourceError, match=r"model.safetensors: 0 of 1572000 bytes arrived; check the network"):
        obtain(quick_tier(folder), http(web))
    web.asked.clear()
    obtain(quick_tier(folder), http(web)).close()
    assert [asked for asked in web.asked if "safetensors" in asked[0]] == [("model.safetensors", 1_500_000)]


def test_a_cancelled_download_keeps_what_came(web: Server, folder: Path) -> None:
    answers = iter([False, True])
    with pytest.raises(FillCancelledError):
        obtain(quick_tier(folder), http(web), cancelled=lambda: next(answers))
    obtain(quick_tier(folder), http(web)).close()


def test_a_file_that_changes_on_the_server_is_fetched_from_the_start(web: Server, folder: Path) -> None:
    web.cuts = [1000, *[0] * 5]
    with pytest.raises(SourceError):
        obtain(quick_tier(folder), http(web))
    web.files["model.safetensors"] = WEIGHTS[::-1]
    stored = obtain(quick_tier(folder), http(web))
    assert contents(stored)["model.safetensors"] == WEIGHTS[::-1]
    stored.close()


def test_a_wrong_hash_is_refused_with_both_hashes_and_nothing_is_kept(web: Server, folder: Path) -> None:
    right = hashlib.sha256(WEIGHTS).hexdigest()
    web.files["SHA256SUMS"] = f"{right}  model.safetensors\n".encode()
    obtain(quick_tier(folder), http(web)).close()
    web.files["SHA256SUMS"] = f"{'0' * 64}  model.safetensors\n".encode()
    with pytest.raises(SourceError, match=rf"its sha256 is {right}, the source announced 0{{64}}"):
        obtain(quick_tier(folder), http(web, "other"))
    assert not list(folder.rglob("*.part"))
    web.files["SHA256SUMS"] = f"{right} *./model.safetensors\n".encode()
    obtain(quick_tier(folder), http(web, "other")).close()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"files": {}}, r"has no config\.json; check the address"),
        ({"status": {"config.json": 403}}, "the server answers 403; check address and access"),
        ({"status": {"config.json": 503}}, "cannot be reached: .*503"),
    ],
)
def test_refusals_of_a_web_server_are_reported(web: Server, folder: Path, fault: dict[str, Any], words: str) -> None:
    for name, value in fault.items():
        setattr(web, name, value)
    with pytest.raises(SourceError, match=words):
        obtain(quick_tier(folder), http(web))


def test_invalid_addresses_and_unreachable_servers_are_reported(folder: Path) -> None:
    with pytest.raises(SourceError, match="is not an http"):
        remote("file:///etc/passwd")
    with pytest.raises(SourceError, match=r"cannot be reached: .*refused.*check the network"):
        obtain(quick_tier(folder), remote("http://127.0.0.1:9/m"))


def test_the_least_recently_used_model_is_evicted_and_one_in_use_is_not(web: Server, folder: Path) -> None:
    disk = quick_tier(folder, 7_000_000)  # two models
    first, second = obtain(disk, http(web, "first")), obtain(disk, http(web, "second"))
    with pytest.raises(DiskFullError, match=r"budget is 7000000, of which 6\d+ are taken by models in use"):
        obtain(disk, http(web, "third"))
    first.close()
    third = obtain(disk, http(web, "third"))
    assert not first.directory.exists()
    assert contents(second) == contents(third) == FILES
    assert disk.used_bytes() <= 7_000_000
    second.close()
    third.close()


def test_foreign_files_in_the_folder_are_neither_counted_nor_removed(web: Server, folder: Path) -> None:
    theirs = folder / "disk" / "hub" / "models--org--tiny" / "model.safetensors"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(WEIGHTS)
    disk = quick_tier(folder, 4_000_000)  # one model
    obtain(disk, http(web, "first")).close()
    obtain(disk, http(web, "second")).close()
    assert theirs.read_bytes() == WEIGHTS
    assert disk.used_bytes() < 4_000_000


def test_two_sidecars_that_want_a_model_at_once_fetch_it_once(web: Server, folder: Path) -> None:
    stored: list[Stored] = []
    threads = [threading.Thread(target=lambda: stored.append(obtain(quick_tier(folder), http(web)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert web.sent("model.safetensors") == 1
    assert [contents(one) for one in stored] == [FILES] * 3
    for one in stored:
        one.close()


def test_a_download_of_a_killed_sidecar_is_resumed_by_the_next(web: Server, folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FETCHER, str(folder / "disk"), web.address], stdout=subprocess.PIPE, text=True
    ) as fetcher:
        assert fetcher.stdout is not None
        assert fetcher.stdout.readline() == "half\n"
        fetcher.send_signal(signal.SIGKILL)
    web.asked.clear()
    stored = obtain(quick_tier(folder), http(web))
    assert contents(stored) == FILES
    assert [start > 0 for name, start in web.asked if name == "model.safetensors"] == [True]
    stored.close()


def test_a_complete_file_of_unknown_size_is_fetched_again_after_a_kill(web: Server, folder: Path) -> None:
    web.sizes = False
    stored = obtain(quick_tier(folder), http(web))
    stored.close()
    weights = stored.directory / "model.safetensors"
    weights.rename(weights.with_name(weights.name + ".part"))  # as a kill before the rename leaves it
    (stored.directory / ".complete").unlink()
    again = obtain(quick_tier(folder), http(web))
    assert contents(again) == FILES
    again.close()


def test_a_full_disk_is_named(web: Server, tmp_path: Path) -> None:
    with (
        small_tmpfs(tmp_path / "small", "1m") as small,
        pytest.raises(DiskFullError, match=r"need 307\d+ bytes, the disk has \d+ free; make room"),
    ):
        obtain(quick_tier(small), http(web))


@pytest.mark.parametrize("broken", ["model.safetensors", "config.json"])
async def test_a_broken_upload_is_fetched_again_once_the_source_is_repaired_and_requested(
    web: Server, scheduler: Rig, broken: str
) -> None:
    files = {path.name: path.read_bytes() for path in scheduler.models["llama"].iterdir()}
    web.files = files | {broken: files[broken][:-9]}
    catalog = pb.Catalog(models=[mpb.ModelSpec(name="m", source=mpb.ModelSource(http=mpb.HttpSource(url=web.address)))])
    async with inside(config(scheduler.folder, **web_settings(scheduler.folder))):
        link = await scheduler.link("a")
        link.send(catalog)
        await link.until(lambda: "m" in link.models and link.models["m"].phase == mpb.MODEL_PHASE_FAILED)
        assert broken in link.models["m"].reason
        web.files = files
        catalog.retry = True
        link.send(catalog)
        await link.until(lambda: link.models["m"].phase == mpb.MODEL_PHASE_CACHED)


def test_doubted_files_are_kept_if_their_checksum_matches_and_fetched_again_otherwise(
    web: Server, folder: Path
) -> None:
    web.files["SHA256SUMS"] = f"{hashlib.sha256(WEIGHTS).hexdigest()}  model.safetensors\n".encode()
    stored = obtain(quick_tier(folder), http(web))
    stored.doubt(damaged=True)
    stored.close()
    obtain(quick_tier(folder), http(web)).close()
    assert (web.sent("model.safetensors"), web.sent("tokenizer.json")) == (1, 2)


def test_a_file_damaged_on_this_disk_is_detected_and_fetched_again(web: Server, folder: Path) -> None:
    web.files["SHA256SUMS"] = f"{hashlib.sha256(WEIGHTS).hexdigest()}  model.safetensors\n".encode()
    stored = obtain(quick_tier(folder), http(web))
    (stored.directory / "model.safetensors").write_bytes(WEIGHTS[::-1])
    stored.doubt(damaged=True)
    stored.close()
    with pytest.raises(SourceError, match="it will be fetched again"):
        obtain(quick_tier(folder), http(web))
    restored = obtain(quick_tier(folder), http(web))
    assert contents(restored)["model.safetensors"] == WEIGHTS
    restored.close()


def test_files_in_use_by_another_sidecar_are_not_doubted(web: Server, folder: Path) -> None:
    mine, theirs = obtain(quick_tier(folder), http(web)), obtain(quick_tier(folder), http(web))
    mine.doubt(damaged=True)
    mine.close()
    assert contents(theirs) == FILES
    theirs.close()


def test_a_disk_that_fills_up_is_named_and_the_next_attempt_resumes(web: Server, tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "small", "4m") as small:
        others = small / "of-others"

        def progress(done: int, total: int) -> None:
            if done > total / 2 and not others.exists():
                with suppress(OSError), others.open("wb", buffering=0) as file:
                    while file.write(b"x" * 65536):
                        pass

        with pytest.raises(DiskFullError, match=r"the disk is full; 3072004 bytes are needed"):
            obtain(quick_tier(small), http(web), progress)
        others.unlink()
        web.asked.clear()
        stored = obtain(quick_tier(small), http(web))
        assert contents(stored) == FILES
        assert [start > 1_000_000 for name, start in web.asked if name == "model.safetensors"] == [True]
        stored.close()


async def test_a_model_from_a_web_server_is_served_and_its_progress_reported(web: Server, scheduler: Rig) -> None:
    web.files = {path.name: path.read_bytes() for path in scheduler.models["llama"].iterdir()}
    async with inside(config(scheduler.folder, **web_settings(scheduler.folder))):
        link = await scheduler.link("a")
        source = mpb.ModelSource(http=mpb.HttpSource(url=web.address))
        link.send(pb.Catalog(models=[mpb.ModelSpec(name="m", source=source)]))
        await link.cached("m")
        state = link.models["m"]
        assert state.bytes_done == state.bytes_total == state.footprint.weight_bytes
        await link.done(link.send(pb.Load(model="m", slabs=32)))


async def test_a_hanging_server_blocks_no_other_model_and_can_be_cancelled(web: Server, scheduler: Rig) -> None:
    web.files = {path.name: path.read_bytes() for path in scheduler.models["llama"].iterdir()}
    web.hanging = "stuck"
    far = [
        mpb.ModelSpec(name=name, source=mpb.ModelSource(http=mpb.HttpSource(url=web.address.replace("tiny", name))))
        for name in ("stuck", "other")
    ]
    near = spec("near", scheduler.models["qwen2"])
    async with inside(config(scheduler.folder, **web_settings(scheduler.folder))):
        link = await scheduler.link("a")
        link.send(pb.Catalog(models=[*far, near]))
        await link.until(lambda: {"stuck", "other", "near"} <= link.models.keys())
        await link.cached("near", "other")
        assert link.models["stuck"].phase == mpb.MODEL_PHASE_FETCHING
        link.send(pb.Catalog(models=[far[1]]))
        await link.done(link.send(pb.Load(model="other", slabs=32)))
        web.released.set()


def test_without_a_disk_tier_a_remote_model_is_refused() -> None:
    source = HttpSource("http://127.0.0.1:9/m")
    with pytest.raises(SourceError, match=r"source\.http needs a disk tier; set disk\.folder"):
        Sources(None, None, outbound()).locate(source, lambda done, total: None, lambda: False)


def test_an_adapter_on_a_web_server_has_a_folder_of_its_own_beside_a_model_at_the_same_address(
    web: Server, folder: Path
) -> None:
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    web.files |= adapter
    sources = Sources(None, quick_tier(folder), outbound())
    found = [
        sources.locate(HttpSource(web.address), lambda done, total: None, lambda: False, names)
        for names in (ADAPTER_FILES, ())
    ]
    for located, files in zip(found, (adapter, FILES), strict=True):
        assert located.stored is not None
        assert contents(located.stored) == files
        located.stored.close()
    del web.files["adapter_model.safetensors"]
    with pytest.raises(SourceError, match=r"has no adapter_model\.safetensors; check the address"):
        sources.locate(
            HttpSource(f"{web.address}/"), lambda done, total: None, lambda: False, ("adapter_model.safetensors",)
        )


def test_checksum_files_are_parsed_as_sha256sum_writes_them() -> None:
    digest = "ab" * 32
    text = f"{digest}  a.json\n{digest.upper()} *b.json\nnot a line\n{digest}  ../c.json\n"
    assert parse_sums(text) == {"a.json": digest, "b.json": digest}
