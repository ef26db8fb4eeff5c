"""A plan as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.plan.admit import Answer
from aegaeon_simulator.plan.evaluate import Point, PoolEvaluator
from aegaeon_simulator.plan.planner import Plan
from aegaeon_simulator.plan.price import ModelCost, saving


def plan_json(plan: Plan, evaluator: PoolEvaluator, price: float, gpus_per_device: int = 1) -> dict[str, Any]:
    """The plan with all results and their basis. GPUs are devices times `gpus_per_device`."""
    each, goal, static = gpus_per_device, evaluator.objective, plan.static
    traffic = evaluator.traffic
    needs = {"pool": plan.best.gpus, "dedicated": static.dedicated, "muxserve": static.muxserve}
    gpus = {name: None if count is None else count * each for name, count in needs.items()}
    return {
        "gpus": gpus["pool"],
        "meets": plan.meets,
        "objective": {**asdict(goal.slo), "share": goal.share, "form": goal.form, "confidence": goal.confidence},
        "best": _point(plan.best, each),
        "splits": [_point(p, each) for p in plan.splits],
        "curve": [_point(p, each) for p in plan.curve],
        "serving": {name: _serving(plan, count, gpus["pool"] or 1, price) for name, count in gpus.items()},
        "models": [_model(cost, each, goal.slo) for cost in plan.costs],
        "classes": [asdict(part) for part in plan.best.parts.classes],
        "attainment_by_tenant": dict(plan.best.parts.tenants),
        "worst_decile": plan.best.parts.worst_decile,
        "latency_s": plan.best.parts.latency_s,
        "gpu_hours_a_day_by_tenant": {name or "none": hours * each for name, hours in plan.tenants.items()},
        "tokens_per_s": plan.tokens_per_s,
        "sessions": evaluator.sessions(),
        "window": {"seconds": traffic.window_s, "seeds": evaluator.seeds if traffic.random else 1},
        "price_per_gpu_hour": price,
        "device": {
            "name": evaluator.device.name,
            "source": evaluator.device.source,
            "derived": list(evaluator.device.derived),
        },
    }


def answer_json(answer: Answer) -> dict[str, Any]:
    """The answer to an admission question."""
    return asdict(answer)


def _serving(plan: Plan, gpus: int | None, pool: int, price: float) -> dict[str, Any] | None:
    if gpus is None:
        return None
    return {"gpus": gpus, "cost_per_million_tokens": plan.per_million(gpus, price), "saving": saving(gpus, pool)}


def _point(point: Point, each: int) -> dict[str, Any]:
    return {
        "policy": point.policy,
        "split": {role: count * each for role, count in asdict(point.split).items()},
        "gpus": point.gpus * each,
        "attainment": asdict(point.share),
        "busy_share": point.busy_share,
    }


def _model(cost: ModelCost, each: int, slo: Slo) -> dict[str, Any]:
    return {
        "name": cost.model.name,
        "kind": cost.model.kind,
        "tenant": cost.model.tenant,
        "rate": cost.model.rate,
        "slo": asdict(cost.model.slo or slo),
        "attainment": cost.attainment,
        "gpus": cost.gpus * each,
        "gpu_hours_a_day": cost.gpu_hours_a_day * each,
        "break_even_rate": cost.break_even_rate,
    }
