"""Folders of models that a tenant names: links lead no further than the platform's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from aegaeon_proto.folders import OutsideError, check_within


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of models beside a private file."""
    root = tmp_path / "models"
    (root / "one" / "templates").mkdir(parents=True)
    (root / "one" / "config.json").write_text("{}")
    (root / "blobs").mkdir()
    (root / "blobs" / "abc").write_text("weights")
    return root


def test_paths_inside_are_read_including_the_links_of_a_hub_cache(models: Path) -> None:
    (models / "one" / "model.safetensors").symlink_to("../blobs/abc")
    (models / "two").symlink_to("one")
    check_within(models / "one", str(models))
    check_within(models / "two", str(models))


@pytest.mark.parametrize("place", ["config.json", "templates/chat.jinja", "weights", "gone"])
@pytest.mark.parametrize(
    "target", ["../../../secret", "../../../../secret", "/etc/aegaeon/tls/tls.key", "/proc/self/environ"]
)
def test_a_link_that_leads_out_is_refused_without_revealing_its_target(models: Path, place: str, target: str) -> None:
    link = models / "one" / place
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    with pytest.raises(OutsideError, match="copy the files there") as error:
        check_within(models / "one", str(models))
    assert target not in str(error.value)


def test_a_folder_outside_is_refused_whatever_its_name(models: Path) -> None:
    others = models.parent / "models-of-others"
    others.mkdir()
    (models / "link").symlink_to(others)
    for folder in (others, models / "link", models / ".." / "models-of-others", models / "one" / ".." / ".."):
        with pytest.raises(OutsideError):
            check_within(folder, str(models))


def test_the_root_may_be_a_link_itself_and_without_one_all_is_open(models: Path) -> None:
    alias = models.parent / "alias"
    alias.symlink_to(models)
    check_within(alias / "one", str(alias))
    check_within(models.parent, "")


def test_circular_links_are_refused(models: Path) -> None:
    (models / "one" / "loop").symlink_to("loop")
    check_within(models / "one", str(models))
    with pytest.raises(OSError, match="symbolic links"):
        check_within(models / "one" / "loop", str(models))
    with pytest.raises(OutsideError):
        check_within(models / "one", str(models / "one" / "loop"))


def test_a_missing_folder_has_its_own_error(models: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        check_within(models / "nothing", str(models))
