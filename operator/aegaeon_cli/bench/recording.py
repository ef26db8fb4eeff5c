"""A stack of real processes under bursts of chats: its event log, and the activity of its busiest decode engine."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from aegaeon_cli.bench.lanes import Lanes, between, lanes_of
from aegaeon_cli.bench.spans import Span, extent, shifted
from aegaeon_cli.errors import BadFileError
from aegaeon_scheduler.core.domain import InstanceId, Role
from aegaeon_scheduler.core.errors import CoreError

if TYPE_CHECKING:
    from aegaeon_cli.demo.traffic import Traffic

_GAP_S = (0.2, 2.0)  # between a person's chats
_PEOPLE = 2  # at each model


async def record(log: Path, seconds: float, models: Path | None) -> None:
    """Run the quickstart with traffic for so long; its scheduler writes `log`. Raises StackError."""
    from aegaeon_cli.demo.stack import Stack, free_port
    from aegaeon_cli.demo.traffic import Traffic
    from aegaeon_cli.folders import models_folder, quickstart
    from aegaeon_cli.models import make_models, questions

    folder = (models or models_folder()).absolute()
    make_models(folder, lambda _line: None)
    async with Stack(quickstart(), folder, free_port(), log) as stack:
        traffic = Traffic(stack.state.url)
        until = time.monotonic() + seconds
        try:
            async with asyncio.TaskGroup() as group:
                for model, known in questions(folder).items():
                    for person in range(_PEOPLE):
                        group.create_task(_talk(traffic, model, list(known), person, until))
        finally:
            await traffic.close()


async def _talk(traffic: Traffic, model: str, known: list[str], person: int, until: float) -> None:
    """Simulate one person: chats with pauses, so that models become idle and active again."""
    from aegaeon_cli.demo.traffic import Chat

    draw = random.Random(f"{model}-{person}")
    while time.monotonic() < until:
        await traffic.ask(Chat(model, draw.choice(known)))
        await asyncio.sleep(draw.uniform(*_GAP_S))


def busiest(log: Path, seconds: float) -> tuple[str, list[Span], float]:
    """(engine, its spans from the first on, how long), of the busiest decode engine. Raises BadFileError."""
    try:
        lanes = lanes_of(log)
    except (CoreError, OSError, UnicodeDecodeError) as error:
        raise BadFileError(f"{log}: {error}") from error
    engine = _busiest(lanes)
    if engine is None:
        raise BadFileError(f"{log}: no engine decoded anything; record a log with traffic")
    spans = lanes.spans[engine]
    begin, end = extent(span for span in spans if span.lane == "compute")
    length = min(seconds, end - begin)
    return str(engine), shifted(between(spans, begin, begin + length), begin), length


def _busiest(lanes: Lanes) -> InstanceId | None:
    busy = {
        engine: sum(span.seconds for span in spans if span.what == "busy")
        for engine, spans in lanes.spans.items()
        if lanes.roles.get(engine) is not Role.PREFILL
    }
    return max((e for e in busy if busy[e] > 0), key=busy.__getitem__, default=None)
