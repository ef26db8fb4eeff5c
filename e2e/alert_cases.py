"""For each alert of the chart: series of one pool that make it fire, and when."""

from __future__ import annotations

from dataclasses import dataclass


def series(metric: str, **labels: str) -> str:
    """A series of a pool as promtool writes it."""
    known = {"namespace": "a", "pool": "demo", **labels}
    given = ", ".join(f'{name}="{value}"' for name, value in known.items())
    return f"aegaeon_{metric}{{{given}}}"


def of_a_gateway(metric: str, **labels: str) -> str:
    return series(f"gateway_{metric}", **{"pod": "gateway-0", "model": "m", **labels})


def of_the_operator(metric: str, **labels: str) -> str:
    return series(f"operator_{metric}", **{"pod": "operator-0", **labels})


@dataclass(frozen=True, slots=True)
class Case:
    """Series from minute 0 on as promtool writes them; the minutes at which the alert is silent, and fires."""

    series: dict[str, str]
    silent: int
    fires: int
    labels: dict[str, str]
    summary: str


POOL = {"namespace": "a", "pool": "demo"}
MODEL_OF_POOL = {**POOL, "model": "m"}
SYSTEM = {"namespace": "system"}
CASES = {
    "AegaeonTokensLate": Case(
        {
            of_a_gateway("tokens_total"): "0+600x40",
            of_a_gateway("tokens_on_time_total"): "0+300x40",
        },
        silent=9,
        fires=15,
        labels={**MODEL_OF_POOL, "severity": "warning"},
        summary="m of a/demo: 50% of tokens met their deadline in the last ten minutes.",
    ),
    "AegaeonQueueGrows": Case(
        {series("scheduler_queue", pod="scheduler", model="m"): "5x10 20x30"},
        silent=20,
        fires=30,
        labels={**MODEL_OF_POOL, "severity": "warning"},
        summary="m of a/demo: 20 sequences have been waiting for ten minutes.",
    ),
    "AegaeonRequestsFail": Case(
        {
            of_a_gateway("requests_total", outcome="ok"): "0+90x40",
            of_a_gateway("requests_total", outcome="rate_limit_exceeded"): "0+100x40",
            of_a_gateway("requests_total", outcome="engine_failed"): "0x9 0+10x30",
        },
        silent=9,
        fires=25,
        labels={**MODEL_OF_POOL, "severity": "critical"},
        summary="m of a/demo: 5% of requests fail.",
    ),
    "AegaeonGatewayWithoutScheduler": Case(
        {series("gateway_scheduler_up", pod="gateway-0"): "1x9 0x30"},
        silent=10,
        fires=12,
        labels={**POOL, "pod": "gateway-0", "severity": "critical"},
        summary="Gateway gateway-0 of a/demo is not attached to its scheduler.",
    ),
    "AegaeonSchedulerBusy": Case(
        {series("scheduler_process_cpu_seconds_total", pod="scheduler"): "0+6x9 54+48x30"},
        silent=18,
        fires=26,
        labels={**POOL, "severity": "warning"},
        summary="The scheduler of a/demo uses 80% of a core.",
    ),
    "AegaeonSchedulerLate": Case(
        {
            series("scheduler_lag_seconds", pod="scheduler"): "0.01x9 0.08x30",
            series("scheduler_submissions_refused_total", pod="scheduler"): "0x40",
        },
        silent=10,
        fires=16,
        labels={**POOL, "severity": "warning"},
        summary="The scheduler of a/demo lags behind its engines' reports; new requests wait or get 503.",
    ),
    "AegaeonSchedulerTurnsLonger": Case(
        {series("scheduler_turn_factor", pod="scheduler"): "1x4 2x1 1x3 3x30"},
        silent=14,
        fires=18,
        labels={**POOL, "severity": "warning"},
        summary="The scheduler of a/demo gives decode turns 3 times as many steps, since it is late.",
    ),
    "AegaeonNoEngines": Case(
        {series("scheduler_instances_up", pod="scheduler"): "2x9 0x30"},
        silent=11,
        fires=13,
        labels={**POOL, "severity": "critical"},
        summary="No engine is attached to the scheduler of a/demo.",
    ),
    "AegaeonNoGateways": Case(
        {
            of_the_operator("pods_wanted", component="gateway"): "2x40",
            of_the_operator("pods_ready", component="gateway"): "1x9 0x30",
        },
        silent=11,
        fires=13,
        labels={**POOL, "severity": "critical"},
        summary="No gateway of a/demo is ready.",
    ),
    "AegaeonGatewaysNotScraped": Case(
        {
            of_the_operator("pods_ready", component="gateway"): "2x40",
            series("gateway_scheduler_up", pod="gateway-0"): "1x9 stale _x30",
        },
        silent=19,
        fires=21,
        labels={**POOL, "severity": "warning"},
        summary="Gateways of a/demo are ready, but Prometheus has no metrics from them.",
    ),
    "AegaeonPoolNotReady": Case(
        {
            of_the_operator("ready", kind="GpuPool", name="demo", reason="Serving"): "1x9 stale _x30",
            of_the_operator("ready", kind="GpuPool", name="demo", reason="PodsStarting"): "_x9 0x5 stale _x25",
            of_the_operator("ready", kind="GpuPool", name="demo", reason="Crashing"): "_x15 0x25",
        },
        silent=19,
        fires=21,
        labels={**POOL, "severity": "critical"},
        summary="GpuPool a/demo has not been Ready for ten minutes.",
    ),
    "AegaeonModelPoolNotReady": Case(
        {of_the_operator("ready", kind="ModelPool", name="team", reason="ModelFailed"): "0x40"},
        silent=14,
        fires=16,
        labels={**POOL, "name": "team", "severity": "warning"},
        summary="ModelPool a/team of GpuPool demo has not been Ready for 15 minutes.",
    ),
    "AegaeonCertificateExpires": Case(
        # 21 days and a minute after minute 0, where time begins
        {of_the_operator("certificate_expiry_timestamp_seconds", role="engine"): f"{21 * 86400 + 60}x90"},
        silent=61,
        fires=63,
        labels={**POOL, "role": "engine", "severity": "warning"},
        summary="The certificate of role engine of a/demo expires in 20d 22h 58m 0s.",
    ),
    "AegaeonOperatorDown": Case(
        {'aegaeon_operator_leads{namespace="system", pod="operator-0"}': "1x9 0x30"},
        silent=14,
        fires=16,
        labels={**SYSTEM, "severity": "critical"},
        summary="No operator is leader.",
    ),
    "AegaeonOperatorListFails": Case(
        {
            'aegaeon_operator_leads{namespace="system", pod="operator-0"}': "1x40",
            'aegaeon_operator_leads{namespace="system", pod="operator-1"}': "0x40",
            'aegaeon_operator_last_list_timestamp_seconds{namespace="system", pod="operator-0"}': "0x40",
            'aegaeon_operator_last_list_timestamp_seconds{namespace="system", pod="operator-1"}': "0x40",
        },
        silent=20,
        fires=21,
        labels={**SYSTEM, "severity": "critical"},
        summary="The operator of system is leader, but has not listed all objects for 15 minutes.",
    ),
    "AegaeonOperatorErrors": Case(
        {of_the_operator("reconcile_errors_total", error="KubeError"): "0x9 0+2x40"},
        silent=24,
        fires=27,
        labels={**POOL, "error": "KubeError", "severity": "warning"},
        summary="Reconciling a/demo has failed for 15 minutes (KubeError).",
    ),
    "AegaeonOperatorRefused": Case(
        {of_the_operator("refused_objects", kind="StatefulSet"): "2x40"},
        silent=14,
        fires=16,
        labels={**POOL, "kind": "StatefulSet", "severity": "warning"},
        summary="The API server refuses 2 objects of kind StatefulSet of a/demo.",
    ),
    "AegaeonOperatorStuck": Case(
        {of_the_operator("last_reconcile_timestamp_seconds"): "0x40"},
        silent=20,
        fires=21,
        labels={**POOL, "severity": "warning"},
        summary="a/demo was last reconciled without an error 21m 0s ago.",
    ),
    "AegaeonOperatorApiErrors": Case(
        {
            'aegaeon_operator_api_requests_total{namespace="system", verb="list", code="200"}': "0+75x40",
            'aegaeon_operator_api_requests_total{namespace="system", verb="list", code="none"}': "0+25x40",
        },
        silent=10,
        fires=12,
        labels={**SYSTEM, "severity": "warning"},
        summary="25% of the operator's calls to the API server fail.",
    ),
}
