"""Conditions as Kubernetes has them: made anew each time, with the moment of the last change carried over."""

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
# Conditions whose True is bad news.
_NEGATIVE = frozenset({"Degraded", "DeviceSuspect"})
# What the one sentence is taken from, in this order.
_SAID = (
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
# What their message says is news as well: how far a fetch is, which device.
_DETAILED = (FETCHING, SUSPECT)
# Numbers that move all the time are written this often at most.
SLOW_S = 60.0
_SLOW = ("queued", "running", "attainment")
_SLOW_OF_POOL = frozenset({"outsideSlabs", "lastAnswered"})
_NUMBER = re.compile(r"[0-9][0-9.,]*(e[+-]?[0-9]+)?")
_LINE = 240  # characters of a message that `kubectl get` prints


@dataclass(frozen=True, slots=True)
class Condition:
    """One aspect of an object's state, without times."""

    type: str
    status: Status
    reason: str
    message: str


def yes(kind: str, reason: str, message: str = "") -> Condition:
    """It holds."""
    return Condition(kind, "True", reason, message)


def no(kind: str, reason: str, message: str) -> Condition:
    """It does not hold."""
    return Condition(kind, "False", reason, message)


def unknown(kind: str, reason: str, message: str) -> Condition:
    """Unknown."""
    return Condition(kind, "Unknown", reason, message)


def first_of(checks: Iterable[Callable[[About], Condition | None]], subject: About) -> Condition:
    """The condition of the first check that has something to say; the last one of every list always has."""
    return next(found for check in checks if (found := check(subject)) is not None)


def summary(conditions: list[Condition], needed: tuple[str, ...]) -> Condition:
    """Ready: the first of the needed conditions that does not hold says why not."""
    by_type = {one.type: one for one in conditions}
    for kind in needed:
        found = by_type[kind]
        if found.status != "True":
            return Condition("Ready", "False", found.reason, found.message)
    return yes("Ready", "Serving", "everything that is needed is there")


def written(about: Live[Any], conditions: list[Condition], now: datetime) -> list[Json]:
    """As the API server keeps them, sorted by type."""
    before = {one["type"]: one for one in about.status.get("conditions", ())}
    found = []
    for one in sorted(conditions, key=lambda one: one.type):
        old = before.get(one.type, {})
        same = old.get("status") == one.status
        found.append(
            {
                "type": one.type,
                "status": one.status,
                "observedGeneration": about.generation,
                "lastTransitionTime": old["lastTransitionTime"] if same else _stamp(now),
                "reason": one.reason,
                "message": one.message[:32768],
            }
        )
    return found


def message_of(conditions: list[Condition]) -> str:
    """The one sentence for the line that `kubectl get` prints: what is wrong, or on its way; empty when nothing is."""
    by_type = {one.type: one for one in conditions}
    for kind, status in _SAID:
        found = by_type.get(kind)
        if found and found.status == status:
            return found.message if len(found.message) <= _LINE else f"{found.message[: _LINE - 1]}…"
    return ""


def notes(report: Report) -> list[Note]:
    """An Event for every transition that concerns a user; few for a new object.

    How far a fetch has come is news as often as the status is written.
    """
    before = {one["type"]: _news(one) for one in report.about.status.get("conditions", ())}
    return [
        Note(report.about, (one["status"] == "False") != (one["type"] in _NEGATIVE), one["reason"], one["message"])
        for one in report.status["conditions"]
        if before.get(one["type"]) != _news(one)
        and (one["type"] in before or one["type"] == "Accepted")
        and one["type"] in _REPORTED
    ]


def _news(condition: Json) -> tuple[str, str, str]:
    return condition["status"], condition["reason"], condition["message"] if condition["reason"] in _DETAILED else ""


def is_due(report: Report, last_written: float | None, now: float) -> bool:
    """Whether the status should be written: at once when it says something new, numbers alone once a minute."""
    new = report.status
    old = {name: value for name, value in report.about.status.items() if name in new}
    if old == new:
        return False
    return last_written is None or now - last_written >= SLOW_S or not _lasts(old, new)


def _lasts(old: Json, new: Json) -> bool:
    """Whether they differ in nothing but numbers that move all the time, in messages, too."""
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
    """A condition or a model; of its message, the words."""
    left = {name: value for name, value in entry.items() if name not in slow}
    return left | {"message": _worded(left["message"])} if "message" in left else left


@lru_cache(1)  # of a look, for thousands of conditions
def _stamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(1024)  # thousands of ModelPools say the same
def _worded(message: str) -> str:
    return _NUMBER.sub("", message)
