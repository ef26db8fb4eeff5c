"""Folders of models and of the disk tier are apart from those of pods, nodes and tenants."""

from __future__ import annotations

import pytest
from operator_hostile import NODES_OWN, PODS_OWN, accepted, objects


@pytest.mark.parametrize("value", PODS_OWN)
def test_model_folders_neither_contain_nor_lie_in_the_pods_own_folders(value: str) -> None:
    assert not accepted(*objects("gpupools.volumes.models.path", value))[0]


@pytest.mark.parametrize(
    "value", [*NODES_OWN, "/a\0", "/a\n", "//a", "/srv/models", "/srv/models/", "/srv/models/x", "/srv", "/srv/"]
)
def test_the_disk_tier_is_separate_from_folders_of_pods_nodes_and_tenants(value: str) -> None:
    gpu, models = objects("gpupools.memory.disk.path", value)
    gpu["spec"]["volumes"] = {"models": {"path": "/srv/models"}}
    assert not accepted(gpu, models)[0]
