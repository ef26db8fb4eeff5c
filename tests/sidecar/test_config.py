"""The configuration file: what is wrong is said with file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sidecar.rig import config

from aegaeon_sidecar.config import read_config
from aegaeon_sidecar.domain.errors import SettingsError


def test_a_complete_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps(config(tmp_path)))
    assert read_config(file).segments == tmp_path / "segments"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"surprise": 1}, "surprise"),
        ({"memory": {"slab_bytes": 0}}, "memory.slab_bytes"),
        ({"role": "x"}, "role"),
        ({"instance": "../up"}, "instance"),
        ({"threads": "many"}, "threads"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps(config(tmp_path, **change)))
    with pytest.raises(SettingsError, match=rf"c\.json: {words}: "):
        read_config(file)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_file_without_a_json_object_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match="the file"):
        read_config(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_config(tmp_path / "none.json")
