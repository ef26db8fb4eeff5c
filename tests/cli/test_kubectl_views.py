"""What `kubectl aegaeon ps` and `doctor` make of what a scheduler, the API server and the operator say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client.samples import Sample

from aegaeon_cli.findings import Verdict
from aegaeon_cli.kubectl.checks import condition_finding, late_finding, metric_findings, suspect_finding
from aegaeon_cli.kubectl.operator_metrics import Scraped
from aegaeon_cli.kubectl.ps import lines
from aegaeon_cli.kubectl.tables import aligned
from aegaeon_operator.reconcile.cluster.facts import Key
from aegaeon_proto.v1.gateway_pb2 import InstanceStatus, ModelTraffic, PoolStatus
from aegaeon_proto.v1.model_pb2 import ModelPhase

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def test_a_model_is_where_engines_that_live_have_its_weights() -> None:
    status = PoolStatus(
        instances=[
            InstanceStatus(instance="e-0", alive=True, resident=["a", "b"], running="a"),
            InstanceStatus(instance="e-1", alive=True, resident=["a"], loading="c"),
            InstanceStatus(instance="e-2", alive=False, resident=["b"], running="b"),
        ],
        models=[
            ModelTraffic(model="a", queued=1, running=2, output_tokens=200, tokens_on_time=150),
            ModelTraffic(model="b"),
            ModelTraffic(model="c"),
            ModelTraffic(model="d", phase=ModelPhase.MODEL_PHASE_FAILED, reason="no such file"),
        ],
    )

    found = {one.model: one for one in lines(Key("n", "p"), status)}

    assert (found["a"].engines, found["a"].turn_of, found["a"].on_time) == (("e-0", "e-1"), ("e-0",), 0.75)
    assert (found["b"].engines, found["b"].turn_of, found["b"].on_time) == (("e-0",), (), None)
    assert [found[name].state for name in "abcd"] == ["resident", "resident", "loading", "failed: no such file"]


def test_tables_have_columns_as_wide_as_their_widest_cell() -> None:
    assert list(aligned([("a", "model"), ("long", "x")])) == ["A      MODEL", "long   x"]


def pool(**conditions: tuple[str, str]) -> dict[str, Any]:
    said = [
        {"type": name, "status": status, "reason": reason, "message": "a sentence"}
        for name, (status, reason) in conditions.items()
    ]
    status = {"conditions": said, "summary": "1/1"}
    return {"kind": "GpuPool", "metadata": {"namespace": "n", "name": "p"}, "status": status}


@pytest.mark.parametrize(
    ("conditions", "verdict", "found"),
    [
        ({"Ready": ("True", "Serving"), "Degraded": ("False", "NothingMissing")}, Verdict.GOOD, "n/p: Ready, 1/1"),
        (
            {"Ready": ("True", "Serving"), "Degraded": ("True", "PartsMissing")},
            Verdict.NOTE,
            "n/p: Degraded: PartsMissing: a sentence",
        ),
        ({"Ready": ("False", "Crashing")}, Verdict.MISSING, "n/p: Crashing: a sentence"),
        ({}, Verdict.MISSING, "n/p: has no status"),
    ],
)
def test_conditions_decide_how_a_pool_is(conditions: Any, verdict: Verdict, found: str) -> None:
    finding = condition_finding(pool(**conditions))

    assert (finding.verdict, finding.text) == (verdict, found)


def test_a_gpu_that_is_left_alone_has_a_line_of_its_own() -> None:
    (finding,) = suspect_finding(pool(Ready=("True", "Serving"), DeviceSuspect=("True", "DeviceLost")))
    assert (finding.what, finding.verdict, finding.text) == ("suspect GPU", Verdict.NOTE, "n/p: a sentence")
    assert not list(suspect_finding(pool(DeviceSuspect=("False", "NoneSuspect"))))


def series(metric: str, value: float, **labels: str) -> Sample:
    return Sample(f"aegaeon_operator_{metric}", {"namespace": "n", "pool": "p", **labels}, value)


def test_certificates_that_expire_refusals_and_old_looks_are_wrong() -> None:
    scraped = Scraped(
        (
            series("certificate_expiry_timestamp_seconds", (NOW + timedelta(days=20)).timestamp(), role="engine"),
            series("certificate_expiry_timestamp_seconds", (NOW + timedelta(days=80)).timestamp(), role="gateway"),
            series("refused_objects", 2, kind="Service"),
            series("last_reconcile_timestamp_seconds", (NOW - timedelta(minutes=16)).timestamp()),
        )
    )

    findings = [(finding.verdict, finding.text) for finding in metric_findings(scraped, NOW, "n")]

    assert findings == [
        (Verdict.MISSING, "n/p: the certificate of engine expires 2026-12-16"),
        (Verdict.MISSING, "n/p: the API server refuses 2 of kind Service"),
        (Verdict.MISSING, "n/p was last reconciled 16 min ago"),
    ]
    assert not list(metric_findings(scraped, NOW, "other"))


def test_kinds_that_the_cluster_does_not_define_are_a_note() -> None:
    of_kind = {"httproutes": 0.0, "inferencepools": 0.0, "services": 1.0}
    scraped = Scraped(tuple(Sample("aegaeon_operator_watched", {"resource": one}, on) for one, on in of_kind.items()))

    (finding,) = metric_findings(scraped, NOW, None)

    assert (finding.verdict, finding.text) == (Verdict.NOTE, "not defined in this cluster: httproutes, inferencepools")


def test_certificates_that_last_are_well() -> None:
    later = (NOW + timedelta(days=80)).timestamp()
    scraped = Scraped((series("certificate_expiry_timestamp_seconds", later, role="gateway"),))

    (finding,) = metric_findings(scraped, NOW, None)

    assert (finding.verdict, finding.text) == (Verdict.GOOD, "1, the first expires 2027-02-14")


def test_a_scheduler_that_is_late_is_named_with_what_waits_for_it() -> None:
    assert late_finding("n/p", PoolStatus(lag_s=0.03, refused=9)) is None
    finding = late_finding("n/p", PoolStatus(lag_s=0.13, intake=7, refused=9))
    assert finding is not None
    assert finding.verdict is Verdict.NOTE
    assert finding.text == "n/p: 130 ms late, 7 new requests wait for it, 9 were refused since its start"
