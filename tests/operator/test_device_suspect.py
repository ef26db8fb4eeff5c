"""GPUs that engines leave alone, in the status of a GpuPool and in Events."""

from __future__ import annotations

from dataclasses import replace

from operator_objects import Json, gpu_pool, model_pool, observed

from aegaeon_operator.reconcile.cluster.conditions import notes
from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.facts import Note, SchedulerFacts, SuspectFacts
from aegaeon_operator.reconcile.cluster.report import reports


def test_a_gpu_that_is_left_alone_is_a_condition_with_an_event_until_it_is_taken_again() -> None:
    pools = [gpu_pool(), model_pool("red", "llama")]

    def seen(scheduler: SchedulerFacts | None) -> tuple[Json, list[Note]]:
        """The condition, and Events of it."""
        now = observed(*pools, scheduler=scheduler)
        report = next(each for each in reports(now, desired(now), {}) if each.about.kind == "GpuPool")
        condition = next(each for each in report.status["conditions"] if each["type"] == "DeviceSuspect")
        events = [note for note in notes(report) if note.reason in ("DeviceLost", "NoneSuspect")]
        pools[0]["status"] = report.status
        return condition, events

    well = SchedulerFacts("one")
    condition, events = seen(well)
    assert (condition["status"], condition["reason"], events) == ("False", "NoneSuspect", [])
    device = SuspectFacts("pool-engine-1", "node-1", "5f1c3a52", "CUDA error 719")
    ill = SchedulerFacts("one", suspects=(device,))
    condition, (event,) = seen(ill)
    assert (condition["status"], condition["reason"]) == ("True", "DeviceLost")
    for words in ("pool-engine-1", "GPU 5f1c3a52 of node node-1", "CUDA error 719"):
        assert words in condition["message"]
    assert (event.warning, event.message) == (True, condition["message"])
    assert seen(ill) == (condition, []), "no news"
    assert seen(None) == (condition, []), "as it was, where no scheduler answers"
    _, (event,) = seen(SchedulerFacts("one", suspects=(device, replace(device, engine="pool-engine-0"))))
    assert "pool-engine-0" in event.message, "another one is news"
    condition, (event,) = seen(well)
    assert (condition["status"], event.warning) == ("False", False)
