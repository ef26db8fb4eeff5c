"""Capacity planning: what models at given rates need, and whether a pool can take one more. Pure but for its files."""

from aegaeon_simulator.plan.admit import Answer, Pool, can_admit
from aegaeon_simulator.plan.as_json import answer_json, plan_json
from aegaeon_simulator.plan.demand import ModelDemand, Traffic, poisson_traffic, trace_traffic, with_slos
from aegaeon_simulator.plan.errors import FileError, PlanError
from aegaeon_simulator.plan.evaluate import Objective, Point, PoolEvaluator
from aegaeon_simulator.plan.file import read_models
from aegaeon_simulator.plan.planner import Plan, plan

__all__ = [
    "Answer",
    "FileError",
    "ModelDemand",
    "Objective",
    "Plan",
    "PlanError",
    "Point",
    "Pool",
    "PoolEvaluator",
    "Traffic",
    "answer_json",
    "can_admit",
    "plan",
    "plan_json",
    "poisson_traffic",
    "read_models",
    "trace_traffic",
    "with_slos",
]
