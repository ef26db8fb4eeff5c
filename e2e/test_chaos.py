"""Short kinds of faults of `make chaos`, each once: nothing is lost that a killed gateway did not take with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.chaos import ground
from e2e.chaos.campaign import Campaign
from e2e.chaos.faults import SHORT
from e2e.chaos.report import by_kind
from e2e.chaos.verdict import in_a_process
from e2e.cluster.layout import Layout

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900, func_only=True)]
# Two to three minutes on a machine of two cores that does nothing else; a limit guards against one that hangs.
SEED, MINUTES = 16, 12


def test_the_pool_recovers_from_every_fault_and_no_answer_is_lost_or_wrong(
    release: str, own_cluster: Path, nodes: Layout, models: Path, tmp_path: Path
) -> None:
    ground.prepare(own_cluster, nodes)
    with in_a_process() as compare:
        with ground.under_load(own_cluster, nodes, models, compare) as world:
            campaign = Campaign(world, SEED, tmp_path)
            campaign.run(dict.fromkeys(SHORT, 1), MINUTES, faults=len(SHORT))
        campaign.look()
    print(*by_kind(campaign), sep="\n")

    assert campaign.stuck == ""
    assert world.verdict.wrong == []
    assert [one.sentence for one in world.verdict.failures if not one.harmed] == []
    assert campaign.missed == []
    assert {one.kind for one in campaign.struck} == set(SHORT)
