"""`aegaeon doctor --check`: what is shared on the node, whose it is, and what is orphaned."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sidecar.web import remote as remote_at
from sidecar.web import serving

from aegaeon_cli import doctor as doctor_module
from aegaeon_cli.main import main
from aegaeon_native import SlabPool
from aegaeon_operator.podrunner import RunFolder, node_folder
from aegaeon_sidecar.domain.errors import SourceError
from aegaeon_sidecar.memory.leases import Borrowing, Lending
from aegaeon_sidecar.weights.disk import DiskTier


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of /dev/shm, and no runs but the test's."""
    path = tmp_path / "shm"
    path.mkdir()
    monkeypatch.setattr(doctor_module, "_SHARED_MEMORY", path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return path


def doctor(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["doctor", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.stdout


def machine(*arguments: str) -> tuple[int, dict[str, Any]]:
    code, output = doctor("--check", "--json", *arguments)
    return code, json.loads(output)


def test_a_node_without_runs_has_no_orphans(shared: Path) -> None:
    assert doctor("--check") == (0, "no orphans in 0 folders\n")
    assert machine() == (0, {"orphans": 0, "folders": [], "disks": []})


def test_every_segment_lease_and_owner_is_listed(shared: Path, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "aegaeon", shared, "q")
    pool = SlabPool.shared(str(run.segments / "a@1.kv"), 65536, 8)
    with (run.segments / "a@1.kv").open("r+b") as file:
        for slab in (1, 2, 5):
            file.seek(slab * 65536)
            file.write(b"x" * 65536)
    lending = Lending(run.segments / "a@1.leases")
    borrowing, lease = Borrowing(run.segments / "a@1.leases"), lending.lend()
    with borrowing.reading(*lease.handle):
        code, text = doctor("--check")
    assert code == 0
    for words in (
        "8 slabs of 65536 bytes, with memory behind them: 1-2, 5; held by process",
        "1 sequences lent, 1 being read (leases 0)",
        "run of process",
    ):
        assert words in text
    for made in (borrowing, lending, pool):
        made.close()
    run.remove()
    assert list(shared.iterdir()) == []


def test_orphans_are_reported_with_the_remedy_and_removed(shared: Path, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "aegaeon", shared, "q")
    crashed = tmp_path / "aegaeon" / "crashed"
    crashed.mkdir()
    (crashed / "lock").touch()
    (run.segments / "a@1.kv").write_bytes(b"x")
    dead = node_folder(shared) / "dead"
    dead.mkdir()
    (dead / "content.weights").write_bytes(b"x")
    code, text = doctor("--check")
    assert code == 1
    assert "its run is dead" in text
    assert "4 orphans, 0.0 MiB; its process is dead: remove it with `aegaeon doctor --sweep`" in text
    code, found = machine()
    assert (code, found["orphans"]) == (1, 4)
    assert {f["name"]: f["orphaned"] for folder in found["folders"] for f in folder["files"]} == {
        "a@1.kv": True,
        "content.weights": True,
        "run.lock": False,
    }
    assert doctor("--sweep")[0] == 0
    assert not dead.exists()
    assert not crashed.exists()
    assert sorted(path.name for path in run.segments.iterdir()) == ["run.lock", "weights.lock"]
    run.remove()


def test_another_folder_is_inspected_on_request(shared: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "a@1.kv").write_bytes(b"x")
    assert machine()[0] == 0
    assert machine("--segments", str(own))[1]["orphans"] == 1
    assert doctor("--sweep", "--segments", str(own))[0] == 0
    assert not (own / "a@1.kv").exists()


def test_the_models_of_a_disk_tier_are_listed_with_their_sources_and_who_pins_them(
    shared: Path, tmp_path: Path
) -> None:
    def gone(done: int, total: int) -> None:
        raise SourceError("the server is gone")

    disk = DiskTier(tmp_path / "disk", 1 << 30, time.sleep)
    with serving() as web:
        remote = remote_at(web.address)
        other = remote_at(web.address.replace("tiny", "other"))
        stored = disk.obtain(remote, lambda done, total: None, lambda: False)
        with pytest.raises(SourceError):
            disk.obtain(other, gone, lambda: False)
    code, text = doctor("--check", "--disk", str(tmp_path / "disk"))
    assert code == 0
    assert f"{remote.address}; pinned by process {os.getpid()}" in text
    models = machine("--disk", str(tmp_path / "disk"))[1]["disks"][0]["models"]
    assert {(model["source"], model["complete"], tuple(model["pids"])) for model in models} == {
        (remote.address, True, (os.getpid(),)),
        (other.address, False, ()),
    }
    stored.close()
