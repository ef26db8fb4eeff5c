"""Capacity planning: what models at given rates need, and whether a pool can take one more. Pure but for its files."""

from aegaeon_simulator.plan.admit import Answer, Pool, can_admit
from aegaeon_simulator.plan.demand import ModelDemand, Traffic, poisson_traffic, trace_traffic
from aegaeon_simulator.plan.errors import FileError, PlanError
from aegaeon_simulator.plan.file import read_models
from aegaeon_simulator.plan.lab import Lab, Objective, Point
from aegaeon_simulator.plan.planner import Plan, plan
from aegaeon_simulator.plan.tell import answer_json, plan_json

__all__ = [
    "Answer",
    "FileError",
    "Lab",
    "ModelDemand",
    "Objective",
    "Plan",
    "PlanError",
    "Point",
    "Pool",
    "Traffic",
    "answer_json",
    "can_admit",
    "plan",
    "plan_json",
    "poisson_traffic",
    "read_models",
    "trace_traffic",
]
