"""What a look keeps of the one before is the same as what it would find anew, whatever has changed."""

from __future__ import annotations

import copy
import operator
import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_objects import KEY, NOW, PLATFORM, gpu_pool, model_pool

from aegaeon_operator.kube.gather import ParsedPools, observe
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.desired import Decisions, desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, EngineFacts, ModelFacts, Observed, Report, SchedulerFacts
from aegaeon_operator.reconcile.cluster.report import Reports, reports

Json = dict[str, Any]
NAMES = ("blue", "green", "red")
SECRETS = {("infra", f"k-{name}"): {"keys": f"key-of-{name}"} for name in NAMES}


def tenant(name: str, **more: Json) -> Json:
    tenants = [{"name": name, "keySecretRef": {"name": f"k-{name}", "key": "keys"}}]
    return model_pool(name, f"model-{name}", tenants=tenants, gateway={"parentRefs": [{"name": "public"}]}, **more)


class Looks:
    """Looks at one pool. `look` holds what was kept against what is found anew."""

    def __init__(self, *objects: Json) -> None:
        self.store, self.facts = Store(), {"scheduler": SchedulerFacts("one"), "secrets": SECRETS, "unreadable": {}}
        self.failures: dict[ChildKey, str] = {}
        self.now = NOW
        self._version = 1
        self._lives, self._decisions, self._reports = ParsedPools(), Decisions(), Reports()
        for one in objects:
            self.put(one)

    def put(self, body: Json) -> None:
        self._version += 1
        self.store.put({**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}})

    def observed(self) -> Observed:
        found = self._lives.observe(KEY, self.store.texts_of(KEY), self.now, PLATFORM)
        return replace(found, **self.facts)

    def look(self) -> list[Report]:
        self.now += timedelta(seconds=1)
        seen = self.observed()
        anew = replace(observe(KEY, self.store.of_pool(KEY), self.now, PLATFORM), **self.facts)
        assert seen == anew
        assert [one.status for one in seen.model_pools] == [one.status for one in anew.model_pools]
        wanted = self._decisions.of(seen)
        assert wanted == desired(anew)
        found = self._reports.of(seen, wanted, self.failures)
        assert [_timeless(one) for one in found] == [_timeless(one) for one in reports(anew, wanted, self.failures)]
        return found


def _timeless(report: Report) -> Json:
    """A change that was not written yet keeps its first time."""
    status = copy.deepcopy(report.status)
    for one in status["conditions"]:
        del one["lastTransitionTime"]
    return {**status, "name": report.about.name}


def edit(world: Looks, chance: random.Random) -> None:
    body = tenant(chance.choice(NAMES))
    body["metadata"] |= {"generation": chance.randrange(1000), "labels": {"team": chance.choice("abc")}}
    body["spec"]["models"][0]["source"] = {"hostPath": chance.choice(["x", "../y", "z"])}
    world.put(body)


def take_away(world: Looks, chance: random.Random) -> None:
    body = tenant(chance.choice(NAMES))
    world.put({**body, "metadata": {**body["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})


def write_statuses(world: Looks, _: random.Random) -> None:
    for report in world.look():
        key = ChildKey(report.about.kind, report.about.namespace, report.about.name)
        body = world.store.get(key)
        assert body is not None
        world.put({**body, "status": report.status})


def change_pool(world: Looks, chance: random.Random) -> None:
    body = gpu_pool(engines={"replicas": chance.randrange(3)}, gateway={"replicas": chance.randrange(2)})
    world.put({**body, "metadata": {**body["metadata"], "generation": chance.randrange(1000)}})


def scheduler_speaks(world: Looks, chance: random.Random) -> None:
    def a_model() -> ModelFacts:
        tokens = chance.randrange(200)
        phase, on_time = chance.choice(["cached", "failed", ""]), int(tokens * chance.random())
        measured = {"output_tokens": tokens, "tokens_on_time": on_time, "token_s": chance.random() / 10}
        return ModelFacts(phase, unanswered=chance.random() < 0.2, **measured)

    names = [f"model-{name}" for name in NAMES]
    notes = {chance.choice(names): "why"} if chance.random() < 0.3 else {}
    engines = (EngineFacts("pool-engine-0", "unified", chance.random() < 0.7, 0, 0.0),)
    spoken = SchedulerFacts("one", {name: a_model() for name in names}, engines, refused=notes, changing=notes)
    spoken = replace(spoken, gateways=frozenset("a"[: chance.randrange(2)]), stopped=chance.random() < 0.2)
    world.facts["scheduler"] = chance.choice([None, spoken, spoken])


def secrets_change(world: Looks, chance: random.Random) -> None:
    there = {one: {"keys": chance.choice(["a", "b", ""])} for one in SECRETS if chance.random() < 0.8}
    world.facts |= {"secrets": there, "unreadable": {("infra", "k-red"): "500"} if chance.random() < 0.3 else {}}


def children_come(world: Looks, chance: random.Random) -> None:
    conditions = [
        {"type": one, "status": chance.choice(["True", "False"]), "reason": "R", "message": "m"}
        for one in ("Accepted", "ResolvedRefs")
    ]
    for one in desired(world.observed()).manifests:
        body = copy.deepcopy(one)
        body["metadata"]["uid"] = body["metadata"]["name"]
        body["status"] = {"readyReplicas": chance.randrange(3), "parents": [{"conditions": conditions}]}
        world.put(body)


def writes_fail(world: Looks, chance: random.Random) -> None:
    world.failures = {ChildKey("HTTPRoute", "infra", chance.choice(NAMES)): "no"} if chance.random() < 0.5 else {}


CHANGES: tuple[Callable[[Looks, random.Random], None], ...] = (
    edit,
    take_away,
    write_statuses,
    change_pool,
    scheduler_speaks,
    secrets_change,
    children_come,
    writes_fail,
)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_of_the_look_before_is_as_if_found_anew(seed: int) -> None:
    chance = random.Random(seed)
    world = Looks(gpu_pool(), *map(tenant, NAMES))
    for _ in range(60):
        for change in chance.sample(CHANGES, chance.randrange(3)):
            change(world, chance)
        world.look()


def test_tokens_alone_make_no_report_of_a_model_pool_anew() -> None:
    """Thousands may answer between two looks."""

    def reported(tokens: int, on_time: int) -> Report:
        model = ModelFacts("cached", output_tokens=tokens, tokens_on_time=on_time, busy_s=tokens / 100, token_s=0.01)
        world.facts["scheduler"] = SchedulerFacts("one", {"model-red": model}, answered_at=tokens)
        return next(each for each in world.look() if each.about.kind == "ModelPool")

    world = Looks(gpu_pool(), tenant("red"))
    before = reported(1000, 990)
    assert reported(2000, 1980) is before
    assert reported(2000, 1000) is not before


def test_an_edit_derives_nothing_of_the_other_model_pools_again() -> None:
    """Its status waits for the look, and thousands are not the edited one."""

    def derived() -> dict[str, tuple[object, ...]]:
        reported = {report.about.name: report for report in world.look()}
        entries = {entry["name"]: entry for entry in world._decisions.of(world.observed()).catalog}
        return {name: (reported[name], entries[f"model-{name}"]) for name in NAMES}

    world = Looks(gpu_pool(), *map(tenant, NAMES))
    derived()
    before = derived()
    edited = tenant("red")
    edited["metadata"]["generation"], edited["spec"]["models"][0]["source"] = 2, {"hostPath": "another"}
    world.put(edited)
    after = derived()
    again = {name: tuple(map(operator.is_not, before[name], after[name])) for name in NAMES}
    assert again == {"red": (True, True), "blue": (False, False), "green": (False, False)}


def test_a_look_at_rest_costs_a_small_part_of_the_first() -> None:
    count = 300
    world = Looks(gpu_pool(), *(model_pool(f"m{at}", f"model-{at}") for at in range(count)))
    world.facts["scheduler"] = SchedulerFacts("one", {f"model-{at}": ModelFacts("cached") for at in range(count)})

    def cost() -> float:
        began = time.process_time()
        seen = world.observed()
        world._reports.of(seen, world._decisions.of(seen), {})
        return time.process_time() - began

    first = cost()
    assert min(cost() for _ in range(3)) < first / 4
