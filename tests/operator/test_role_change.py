"""Split roles that are united, and the other way: the old engines stay until the new ones can serve."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_objects import KEY, NOW, gpu_pool, model_pool, observed
from operator_state import pod, unplaced

from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, EngineFacts, ModelFacts, Observed, SchedulerFacts
from aegaeon_operator.reconcile.cluster.names import labels
from aegaeon_operator.reconcile.cluster.report import reports
from aegaeon_operator.reconcile.cluster.role_change import PATIENCE_S, superseded

Json = dict[str, Any]
UNITED, RED = gpu_pool(), model_pool("red", "llama")
SPLIT = gpu_pool(prefill={"replicas": 1}, decode={"replicas": 1})
del SPLIT["spec"]["engines"]
OLD = ("pool-prefill", "pool-decode")
TIGHT = unplaced("pool-engine-0", "engine", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")


def united_after_split(*pods: Json) -> Observed:
    """The children are those of split roles, and the spec has one role."""
    children = [
        {**one, "metadata": {**one["metadata"], "uid": one["metadata"]["name"]}}
        for one in desired(observed(SPLIT, RED)).manifests
    ]
    placed = [{**one, "metadata": {**one["metadata"], "labels": labels(KEY, "engine")}} for one in pods]
    return observed(UNITED, RED, *children, *placed)


def attached(*roles: str) -> SchedulerFacts:
    return SchedulerFacts("one", engines=tuple(EngineFacts(role, role, True, 0, 0.0) for role in roles))


@pytest.mark.parametrize(
    ("seen", "facts", "staying"),
    [
        (united_after_split(), attached("prefill", "decode"), ("prefill", "decode")),
        (united_after_split(), None, ("prefill", "decode")),
        (united_after_split(pod("pool-engine-0", "engine")), attached("prefill", "decode"), ("prefill", "decode")),
        (united_after_split(), attached("prefill", "decode", "unified"), ()),
        (united_after_split(TIGHT), attached("prefill", "decode"), ()),
        (observed(UNITED, RED), attached("unified"), ()),
    ],
    ids=(
        "not started",
        "the scheduler does not answer",
        "not attached yet",
        "attached",
        "no room for both",
        "nothing was changed",
    ),
)
def test_old_engines_stay_until_every_new_role_has_one(
    seen: Observed, facts: SchedulerFacts | None, staying: tuple[str, ...]
) -> None:
    assert superseded(seen, facts) == staying
    seen = replace(seen, superseded=staying)
    gone = {key.name for key in desired(seen).leftovers if key.kind == "StatefulSet"}
    there = {key.name for key in seen.children if key.kind == "StatefulSet"}
    assert gone == (set() if staying else there - {"pool-engine"})


OLD_ALONE, BOTH = {"prefill", "decode"}, {"prefill", "decode", "unified"}
ON_DEMAND = ModelFacts("cached", roles=frozenset(OLD_ALONE), absent_roles=frozenset({"unified"}))


@pytest.mark.parametrize(
    ("llama", "qwen", "ready_s", "stay"),
    [
        (ModelFacts("cached", roles=frozenset(BOTH)), ModelFacts("cached", roles=frozenset(OLD_ALONE)), 60, True),
        (ModelFacts("cached", roles=frozenset(BOTH)), ModelFacts("fetching"), 60, True),
        (ModelFacts("cached", roles=frozenset(BOTH)), ModelFacts("cached", roles=frozenset(BOTH)), 0, False),
        (ModelFacts("cached", roles=frozenset(BOTH)), ModelFacts("failed"), 0, False),
        (ModelFacts("cached", roles=frozenset(BOTH)), ModelFacts("absent"), 0, False),
        (ModelFacts("cached", roles=frozenset(BOTH)), ON_DEMAND, 0, False),
        (ModelFacts("cached", roles=frozenset(OLD_ALONE)), ModelFacts("fetching"), PATIENCE_S, False),
    ],
    ids=[
        "not there yet",
        "fetched",
        "served",
        "failed everywhere",
        "fetched on demand",
        "fetched on demand at the new nodes alone",
        "for too long",
    ],
)
def test_old_engines_stay_until_new_ones_serve_what_they_serve(
    llama: ModelFacts, qwen: ModelFacts, ready_s: float, stay: bool
) -> None:
    began = (NOW - timedelta(seconds=ready_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": began}]
    seen = united_after_split(pod("pool-engine-0", "engine", conditions=ready))
    facts = replace(attached("prefill", "decode", "unified"), models={"llama": llama, "qwen": qwen})
    assert superseded(seen, facts) == (("prefill", "decode") if stay else ())


def test_a_prefill_engine_without_a_decoder_in_reach_takes_over_from_none() -> None:
    """Both are attached, on two nodes: the scheduler gives neither of them requests."""
    children = [
        {**manifest, "metadata": {**manifest["metadata"], "uid": manifest["metadata"]["name"]}}
        for manifest in desired(observed(UNITED, RED)).manifests
    ]
    seen = observed(SPLIT, RED, *children)
    facts = attached("prefill", "decode", "unified")
    apart, pair = ({"llama": ModelFacts("cached", roles=frozenset(roles))} for roles in (["unified", "decode"], BOTH))
    assert superseded(seen, replace(facts, models=apart)) == ("unified",)
    assert superseded(seen, replace(facts, models=pair)) == ()


@pytest.mark.parametrize(("decode", "stay"), [(set(), True), ({"decode"}, False)], ids=["fetches ahead", "on demand"])
def test_a_prefill_engine_that_fetches_on_demand_needs_a_decode_engine_that_does(decode: set[str], stay: bool) -> None:
    children = [
        {**manifest, "metadata": {**manifest["metadata"], "uid": manifest["metadata"]["name"]}}
        for manifest in desired(observed(UNITED, RED)).manifests
    ]
    llama = ModelFacts("cached", roles=frozenset({"unified"}), absent_roles=frozenset({"prefill", *decode}))
    facts = replace(attached("prefill", "decode", "unified"), models={"llama": llama})
    assert superseded(observed(SPLIT, RED, *children), facts) == (("unified",) if stay else ())


def test_a_pool_is_not_called_unready_while_its_old_engines_serve() -> None:
    seen = replace(united_after_split(), superseded=("prefill", "decode"), scheduler=attached("prefill", "decode"))
    (found,) = (one for one in reports(seen, desired(seen), {}) if one.about.kind == "GpuPool")
    assert {one["type"]: one["status"] for one in found.status["conditions"]}["EnginesReady"] == "True"


def test_all_of_a_superseded_role_stays() -> None:
    seen = replace(united_after_split(), superseded=("prefill", "decode"))
    gone = set(desired(seen).leftovers)
    assert not gone & {ChildKey(kind, "infra", name) for kind in ("StatefulSet", "Service") for name in OLD}
    assert {f"{name}-0" for name in OLD} < set(desired(seen).engines), "requests wait for one that leaves for a moment"
