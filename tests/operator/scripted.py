"""Schedulers of a script, in the place of the operator's links to real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube import schedulers
from aegaeon_operator.reconcile.cluster.desired import Desired
from aegaeon_operator.reconcile.cluster.facts import SchedulerFacts

Answer = SchedulerFacts | KubeError
SILENT = KubeError(0, "the scheduler does not answer: Deadline Exceeded")


@dataclass
class Schedulers:
    """What schedulers have received: lists of models, and with its scheduler each list of engines that end; targets of
    links that were opened and closed."""

    answer: Callable[[str], Answer]
    demands: dict[str, asyncio.Event]
    catalogs: list[list[str]] = field(default_factory=list)
    ending: list[tuple[str, list[str]]] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


@dataclass
class _Link:
    schedulers: Schedulers
    target: str

    def __post_init__(self) -> None:
        self.schedulers.opened.append(self.target)

    async def exchange(self, wanted: Desired, _: int) -> SchedulerFacts:
        self.schedulers.catalogs.append([str(model["name"]) for model in wanted.catalog])
        if isinstance(answer := self.schedulers.answer(self.target), KubeError):
            raise answer
        return answer

    async def tell_ending(self, engines: list[str]) -> None:
        self.schedulers.ending.append((self.target, engines))

    async def demand(self) -> bool:
        return await self.schedulers.demands.get(self.target, asyncio.Event()).wait()

    async def close(self) -> None:
        self.schedulers.closed.append(self.target)


def scripted(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], Answer], demands: dict[str, asyncio.Event] | None = None
) -> Schedulers:
    """`answer` by target, which is `scheduler` or `standby`; `demands`: set once a scheduler has a request."""
    made = Schedulers(answer, demands or {})
    monkeypatch.setattr(schedulers, "SchedulerLink", lambda target, _: _Link(made, target))
    monkeypatch.setattr(schedulers, "admin_target", lambda key, name: name)
    return made
