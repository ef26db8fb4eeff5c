"""Kubernetes conditions: computed in each reconcile, with the time of the last transition carried over."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, TypeVar

from aegaeon_operator.reconcile.cluster.facts import Json, Live, Note, Report

Status = Literal["True", "False", "Unknown"]
About = TypeVar("About")
# Conditions whose status True is a problem.
_NEGATIVE = frozenset({"Degraded", "DeviceSuspect"})
# The order of the conditions from which the printed message is taken.
_MESSAGE_ORDER = (
    ("Ready", "False"),
    ("Degraded", "True"),
    ("Progressing", "True"),
    ("Redundant", "False"),
    ("Admitted", "False"),
    ("DeviceSuspect", "True"),
    ("MemoryReserved", "False"),
)
_REPORTED = ("Accepted", "Admitted", "Degraded", "DeviceSuspect", "Ready")
FETCHING = "Fetching"
SUSPECT = "DeviceLost"
# Reasons whose change of message is an Event as well: progress of a fetch, another device.
_DETAILED = (FETCHING, SUSPECT)
# Minimum period of writes for numbers that change continuously.
SLOW_S = 60.0
_SLOW = ("queued", "running", "attainment")
_SLOW_OF_POOL = frozenset({"outsideSlabs", "lastAnswered"})
_NUMBER = re.compile(r"[0-9][0-9.,]*(e[+-]?[0-9]+)?")
_LINE = 240  # characters of a message that `kubectl get` prints


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of an object, without times."""

    type: str
    status: Status
    reason: str
    message: str


def yes(kind: str, reason: str, message: str = "") -> Condition:
    """Return a condition with status True."""
    return Condition(kind, "True", reason, message)


def no(kind: str, reason: str, message: str) -> Condition:
    """Return a condition with status False."""
    return Condition(kind, "False", reason, message)


def unknown(kind: str, reason: str, message: str) -> Condition:
    """Return a condition with status Unknown."""
    return Condition(kind, "Unknown", reason, message)


def first_of(checks: Iterable[Callable[[About], Condition | None]], subject: About) -> Condition:
    """Return the first condition that a check returns; the last check of a list always returns one."""
    return next(condition for check in checks if (condition := check(subject)) is not None)


def summary(conditions: list[Condition], needed: tuple[str, ...]) -> Condition:
    """Return Ready; its reason is that of the first needed condition that is not True."""
    by_type = {condition.type: condition for condition in conditions}
    for kind in needed:
        missing = by_type[kind]
        if missing.status != "True":
            return Condition("Ready", "False", missing.reason, missing.message)
    return yes("Ready", "Serving", "all required conditions are True")


def written(about: Live[Any], conditions: list[Condition], now: datetime) -> list[Json]:
    """Return the conditions in the API server's form, sorted by type."""
    before = {entry["type"]: entry for entry in about.status.get("conditions", ())}
    entries = []
    for condition in sorted(conditions, key=lambda condition: condition.type):
        old = before.get(condition.type, {})
        same = old.get("status") == condition.status
        entries.append(
            {
                "type": condition.type,
                "status": condition.status,
                "observedGeneration": about.generation,
                "lastTransitionTime": old["lastTransitionTime"] if same else _stamp(now),
                "reason": condition.reason,
                "message": condition.message[:32768],
            }
        )
    return entries


def message_of(conditions: list[Condition]) -> str:
    """Return the sentence that `kubectl get` prints: the first problem or pending change; "" if there is none."""
    by_type = {condition.type: condition for condition in conditions}
    for kind, status in _MESSAGE_ORDER:
        condition = by_type.get(kind)
        if condition and condition.status == status:
            text = condition.message
            return text if len(text) <= _LINE else f"{text[: _LINE - 1]}…"
    return ""


def notes(report: Report) -> list[Note]:
    """Return an Event for every transition that concerns users; few for a new object.

    The progress of a fetch is an Event whenever the status is written.
    """
    before = {condition["type"]: _news(condition) for condition in report.about.status.get("conditions", ())}
    return [
        Note(
            report.about,
            (condition["status"] == "False") != (condition["type"] in _NEGATIVE),
            condition["reason"],
            condition["message"],
        )
        for condition in report.status["conditions"]
        if before.get(condition["type"]) != _news(condition)
        and (condition["type"] in before or condition["type"] == "Accepted")
        and condition["type"] in _REPORTED
    ]


def _news(condition: Json) -> tuple[str, str, str]:
    return condition["status"], condition["reason"], condition["message"] if condition["reason"] in _DETAILED else ""


def is_written(report: Report) -> bool:
    """Return whether the object has the status already."""
    return _before(report) == report.status


def is_due(report: Report, last_written: float | None, now: float) -> bool:
    """Return whether to write the status: at once if more than numbers changed, otherwise once a minute."""
    if is_written(report):
        return False
    return last_written is None or now - last_written >= SLOW_S or not _lasts(_before(report), report.status)


def _before(report: Report) -> Json:
    """Return the fields of the object's status that the operator writes."""
    return {name: value for name, value in report.about.status.items() if name in report.status}


def _lasts(old: Json, new: Json) -> bool:
    """Return whether two statuses differ only in numbers that change continuously, in messages as well."""
    names = (old.keys() | new.keys()) - _SLOW_OF_POOL
    return all(_alike(name, old.get(name), new.get(name)) for name in names)


def _alike(name: str, old: Any, new: Any) -> bool:
    if old == new:
        return True
    if name == "message":
        return _worded(old or "") == _worded(new or "")
    if not isinstance(old, list) or not isinstance(new, list) or len(old) != len(new):
        return False
    slow = () if name == "conditions" else _SLOW
    return all(a == b or _without(slow, a) == _without(slow, b) for a, b in zip(old, new, strict=True))


def _without(slow: Collection[str], entry: Json) -> Json:
    """Return a condition or a model's state without slow fields and without the numbers of its message."""
    left = {name: value for name, value in entry.items() if name not in slow}
    return left | {"message": _worded(left["message"])} if "message" in left else left


@lru_cache(1)  # one time per reconcile, for thousands of conditions
def _stamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(1024)  # thousands of ModelPools have the same messages
def _worded(message: str) -> str:
    return _NUMBER.sub("", message)
