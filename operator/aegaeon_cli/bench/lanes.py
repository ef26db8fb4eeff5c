"""Activity of an engine's lanes, from a recorded event log: reports give the end and the duration of each command."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from aegaeon_cli.bench.spans import Span
from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import CommandId, InstanceId, Role
from aegaeon_scheduler.core.log import read

COPIES: dict[type, tuple[str, str]] = {
    cmd.Load: ("weights", "load"),
    cmd.Unload: ("weights", "unload"),
    cmd.SwapOut: ("kv-out", "swap-out"),
    cmd.SwapIn: ("kv-in", "swap-in"),
    cmd.Adopt: ("kv-in", "adopt"),
}
COMPUTE = ("busy", "switching", "stalled")


class Lanes:
    """Spans by engine, extended by every event of the log."""

    def __init__(self) -> None:
        self.roles: dict[InstanceId, Role] = {}
        self.spans: dict[InstanceId, list[Span]] = {}
        self._sent: dict[tuple[InstanceId, CommandId], cmd.Send] = {}
        self._models: dict[object, str] = {}
        self._running: dict[InstanceId, str] = {}

    def see(self, now: float, event: ev.Event, commands: Iterable[cmd.Command]) -> None:
        """Process one line of the log."""
        if isinstance(event, ev.InstanceUp):
            self.roles[event.instance] = event.role
            self.spans.setdefault(event.instance, [])
        elif isinstance(event, ev.CommandDone):
            self._copied(now, event)
        elif isinstance(event, ev.TurnProgress):
            self._computed(now, event)
        for command in commands:
            if isinstance(command, cmd.Send):
                self._sent[command.instance, command.id] = command
                if isinstance(command.body, cmd.Open):
                    self._models[command.body.seq] = command.body.model

    def _copied(self, now: float, event: ev.CommandDone) -> None:
        sent = self._sent.pop((event.instance, event.id), None)
        if sent is None or type(sent.body) not in COPIES:
            return
        lane, what = COPIES[type(sent.body)]
        body = sent.body
        model = body.model if isinstance(body, cmd.Load | cmd.Unload) else self._models.get(getattr(body, "seq", None))
        span = Span(lane, what, model or "", now - event.seconds, now, event.bytes_moved)
        self.spans.setdefault(event.instance, []).append(span)

    def _computed(self, now: float, event: ev.TurnProgress) -> None:
        """Place the seconds of a report right before it: first the wait, then the computation. The wait of a warm-up
        turn delayed no sequence."""
        sent = self._sent.get((event.instance, event.turn))
        if sent is None or not isinstance(sent.body, cmd.Turn):
            return
        model, spans = sent.body.model, self.spans.setdefault(event.instance, [])
        busy_s = event.decode_s + event.prefill_s + event.first_s
        begin = now - busy_s
        if not sent.body.warm_up:
            waited = "stalled" if self._running.get(event.instance) == model else "switching"
            self._running[event.instance] = model
            if event.wait_s > 0:
                spans.append(Span("compute", waited, model, begin - event.wait_s, begin))
        if busy_s > 0:
            spans.append(Span("compute", "busy", model, begin, now))


def lanes_of(log: Path) -> Lanes:
    """Read a log that `aegaeon up --record` wrote. Raises LogError."""
    lanes = Lanes()
    for now, event, commands in read(log):
        lanes.see(now, event, commands)
    return lanes


def between(spans: Iterable[Span], begin_s: float, end_s: float) -> list[Span]:
    """The parts of the spans inside a window."""
    cut = [
        Span(s.lane, s.what, s.model, max(s.begin_s, begin_s), min(s.end_s, end_s), s.nbytes)
        for s in spans
        if s.end_s > begin_s and s.begin_s < end_s
    ]
    return sorted(cut, key=lambda span: span.begin_s)


def shares(spans: Iterable[Span]) -> dict[str, dict[str, float]]:
    """Seconds of the compute lane by model, then by busy, switching and stalled."""
    out: dict[str, dict[str, float]] = {}
    for span in spans:
        if span.lane == "compute":
            seconds = out.setdefault(span.model, dict.fromkeys(COMPUTE, 0.0))
            seconds[span.what] += span.seconds
    return dict(sorted(out.items()))
