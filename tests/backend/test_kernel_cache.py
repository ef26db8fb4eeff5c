"""Compiled kernels are kept on the node, in a folder that no other user can put kernels into."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from aegaeon_sidecar.backends.kernel_cache import VARIABLE, keep_kernels

NAME = f"triton-{os.geteuid()}"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")  # so that it is as before afterwards
    monkeypatch.delenv(VARIABLE)


def test_kernels_are_kept_beside_the_segments(tmp_path: Path) -> None:
    for _ in range(2):  # the second engine finds the folder
        os.environ.pop(VARIABLE, None)
        keep_kernels(tmp_path)
        assert os.environ[VARIABLE] == str(tmp_path / NAME)
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o700


def test_a_place_of_the_environment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/elsewhere")
    keep_kernels(tmp_path)
    assert os.environ[VARIABLE] == "/elsewhere"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("planted", ["open to all", "a link", "a file"])
def test_a_folder_that_others_may_write_into_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, planted: str
) -> None:
    place, other = tmp_path / NAME, tmp_path / "other"
    if planted == "open to all":
        place.mkdir()
        place.chmod(0o777)
    elif planted == "a link":
        other.mkdir(mode=0o700)
        place.symlink_to(other)
    else:
        place.touch()
    keep_kernels(tmp_path)
    assert VARIABLE not in os.environ
    assert "are not kept" in caplog.text


def test_where_nothing_may_be_executed_kernels_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As containers' own /dev/shm is mounted: Triton's launchers would fail to load."""
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    keep_kernels(tmp_path)
    assert VARIABLE not in os.environ


def test_a_folder_of_segments_that_is_not_there_ends_no_engine(tmp_path: Path) -> None:
    keep_kernels(tmp_path / "none")
    assert VARIABLE not in os.environ
