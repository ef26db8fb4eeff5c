"""A directory that the catalog names is read inside the folder that it is said to lie in, by engines and gateways."""

from __future__ import annotations

from pathlib import Path

import pytest

from aegaeon_proto.v1 import model_pb2 as pb
from aegaeon_sidecar.errors import SourceError
from aegaeon_sidecar.weights.sources import _directory


def test_a_link_out_of_the_folder_of_models_fails_that_model_with_a_sentence(tmp_path: Path) -> None:
    model = tmp_path / "models" / "one"
    model.mkdir(parents=True)
    (model / "config.json").symlink_to("/etc/hostname")
    source = pb.ModelSource(directory=str(model), root=str(tmp_path / "models"))
    with pytest.raises(SourceError, match=r"source\.directory: .*config\.json leads out of"):
        _directory(source.directory, source.root)
    assert _directory(source.directory, "") == model
