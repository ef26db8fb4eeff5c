"""The live view of a pool: the models on each engine, queues, and the newest decisions with their reasons.

Pure: statuses of the scheduler in, rich renderables out. Rates and decisions are differences from the last status.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from aegaeon_cli.welcome import by_name, phase_text
from aegaeon_proto.v1.engine_pb2 import Role
from aegaeon_proto.v1.gateway_pb2 import InstanceStatus, ModelStatus, ModelTraffic, PoolStatus, SequenceStatus
from aegaeon_proto.v1.model_pb2 import ModelPhase
from aegaeon_scheduler.service.lag import LIMIT_S

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")
_BAR_CELLS = 8  # with the rest of its row within 80 columns
_DECISIONS = 8
_SEQUENCES = 10
_NUMBERS = frozenset(
    [
        "prompt",
        "age",
        "queue",
        "active",
        "requests",
        "tokens",
        "tokens/s",
        "loads",
        "switches",
        "seqs",
        "busy",
        "stall",
        "on-time",
    ]  # right-aligned
)
_ROLES = {Role.ROLE_PREFILL: "prefill", Role.ROLE_DECODE: "decode", Role.ROLE_UNIFIED: "unified"}


class PoolView:
    """Keeps state between statuses: counters for rates, and the newest decisions."""

    def __init__(self) -> None:
        self._before: PoolStatus | None = None
        self._decisions: deque[tuple[float, str, str]] = deque(maxlen=_DECISIONS)

    def show(self, status: PoolStatus) -> RenderableType:
        """Render this status; call it with each status in turn."""
        self._remember(status)
        colours = {model.model: _COLOURS[i % len(_COLOURS)] for i, model in enumerate(status.models)}
        title = f"pool {status.pool} · policy {status.policy} · up {_age(status.uptime_s)}"
        if status.lag_s > LIMIT_S:
            title += f" · {1000 * status.lag_s:.0f} ms late, {status.intake} requests wait for that"
        parts = [
            Panel(self._engines(status, colours), title=title, title_align="left", border_style="dim"),
            Panel(self._models(status, colours), title="models", title_align="left", border_style="dim"),
            Panel(_sequences(status.sequences, colours), title="sequences", title_align="left", border_style="dim"),
            Panel(self._reasons(), title="newest decisions", title_align="left", border_style="dim"),
        ]
        self._before = status
        return Group(*parts)

    def _remember(self, status: PoolStatus) -> None:
        before = {i.instance: i.reason for i in self._before.instances} if self._before else {}
        for instance in status.instances:
            if instance.reason and instance.reason != before.get(instance.instance):
                self._decisions.appendleft((status.uptime_s, instance.instance, instance.reason))

    def _elapsed(self, status: PoolStatus) -> float:
        """Seconds since the previous status, or since the start."""
        before = self._before.uptime_s if self._before else 0.0
        return max(status.uptime_s - before, 1e-3)

    def _engines(self, status: PoolStatus, colours: dict[str, str]) -> RenderableType:
        table = _table(
            "engine", "role", "running", "loading", "resident", "memory", "seqs", "switches", "reused", "busy"
        )
        elapsed = self._elapsed(status)
        busy_before = {i.instance: i.busy_s for i in self._before.instances} if self._before else {}
        for instance in status.instances:
            busy = max(0.0, instance.busy_s - busy_before.get(instance.instance, 0.0)) / elapsed
            table.add_row(*_engine(instance, colours, min(busy, 1.0)))
        return Group(table, *_suspects(status), *_outside(status.instances))

    def _models(self, status: PoolStatus, colours: dict[str, str]) -> RenderableType:
        table = _table(
            "model", "state", "queue", "active", "requests", "tokens", "tokens/s", "loads", "stall", "on-time"
        )
        elapsed = self._elapsed(status)
        tokens_before = {m.model: m.output_tokens for m in self._before.models} if self._before else {}
        for model in status.models:
            rate = max(0, model.output_tokens - tokens_before.get(model.model, 0)) / elapsed
            table.add_row(*_model(model, colours, rate))
        wrong = [(name, state) for name, state in by_name(status) if _wrong(state)]
        return Group(table, *(Text(f"{name}: {phase_text(state)}", "red") for name, state in wrong))

    def _reasons(self) -> RenderableType:
        lines = [
            Text.assemble((f"{_age(at):>8}  ", "dim"), (f"{instance:<12} ", "bold"), reason)
            for at, instance, reason in self._decisions
        ]
        return Group(*lines) if lines else Text("none so far", "dim")


def bar(used: int, total: int, cells: int, kept: int = 0) -> str:
    """`█████▒▒░░░` with `used` of `total` filled, then `kept`; a used amount fills at least one cell."""
    filled = min(cells, -(-used * cells // total)) if total else 0
    half = min(cells, -(-(used + kept) * cells // total)) - filled if total else 0
    return "█" * filled + "▒" * half + "░" * (cells - filled - half)


def _suspects(status: PoolStatus) -> Iterable[Text]:
    """Engines that do not attach, as their GPU was lost repeatedly."""
    for device in status.suspects:
        yield Text(
            f"{device.instance}: does not use GPU {device.uuid}, lost {device.losses} times: {device.error}", "red"
        )


def _outside(instances: Iterable[InstanceStatus]) -> list[Text]:
    """Peak memory of engines outside their slabs: a line for each engine above its reservation, else one line."""
    reporting = [engine for engine in instances if engine.alive and engine.memory.outside.peak_bytes]
    over = [engine for engine in reporting if engine.memory.outside.peak_bytes > engine.memory.outside.reserved_bytes]
    if over:
        lines = (f"{engine.instance}: {_beside(engine)} reserved; raise spec.memory.outsideSlabs" for engine in over)
        return [Text(line, "red") for line in lines]
    most = max(reporting, key=lambda engine: engine.memory.outside.peak_bytes, default=None)
    return [] if most is None else [Text(f"{_beside(most)} reserved ({most.instance})", "dim")]


def _beside(instance: InstanceStatus) -> str:
    outside = instance.memory.outside
    return f"outside slabs up to {outside.peak_bytes >> 20} MiB, {outside.reserved_bytes >> 20} MiB"


def _engine(instance: InstanceStatus, colours: dict[str, str], busy: float) -> Iterable[RenderableType]:
    used = instance.slabs - instance.memory.slabs_free
    idle = [name for name in instance.resident if name != instance.running]
    return (
        Text(instance.instance, "bold" if instance.alive else "bold red"),
        _ROLES.get(instance.role, "?") if instance.alive else Text("gone", "red"),
        _badge(instance.running, colours),
        _name(instance.loading, colours),
        Text(" ").join(Text(name, colours.get(name, "")) for name in idle),
        f"{bar(used, instance.slabs, _BAR_CELLS, instance.memory.slabs_kept)} {used}/{instance.slabs}",
        str(instance.sequences),
        str(instance.switches),
        _reused(instance),
        f"{busy:.0%}",
    )


def _reused(instance: InstanceStatus) -> str:
    """The share of prompt tokens that the engine reused instead of computing."""
    reuse = instance.memory.reuse
    reused = reuse.device_tokens + reuse.host_tokens
    return f"{reused / reuse.prompt_tokens:.0%}" if reuse.prompt_tokens else "-"


def _wrong(model: ModelTraffic | ModelStatus) -> bool:
    """True when the model failed, or the engines that have it cannot serve it; an extra line shows the reason."""
    unserved = model.phase == ModelPhase.MODEL_PHASE_UNSPECIFIED and bool(model.reason)
    return unserved or model.phase == ModelPhase.MODEL_PHASE_FAILED


def _model(model: ModelTraffic, colours: dict[str, str], rate: float) -> Iterable[RenderableType]:
    return (
        Text(model.model, f"bold {colours[model.model]}"),
        Text(phase_text(model).partition(":")[0], "red") if _wrong(model) else phase_text(model),
        str(model.queued),
        str(model.running),
        str(model.requests),
        str(model.output_tokens),
        f"{rate:.0f}",
        str(model.switches),
        f"{1000 * (model.switch_s + model.stall_s) / model.switches:.1f} ms" if model.switches else "-",
        f"{model.tokens_on_time / model.output_tokens:.1%}" if model.output_tokens else "-",
    )


def _sequences(sequences: Iterable[SequenceStatus], colours: dict[str, str]) -> RenderableType:
    """The youngest sequences."""
    table = _table("request", "model", "engine", "state", "prompt", "tokens", "age")
    for sequence in sorted(sequences, key=lambda s: s.age_s)[:_SEQUENCES]:
        table.add_row(
            f"{sequence.seq.request[-12:]}/{sequence.seq.choice}",
            _name(sequence.model, colours),
            sequence.instance or "-",
            sequence.state,
            str(sequence.prompt_tokens),
            str(sequence.output_tokens),
            _age(sequence.age_s),
        )
    return table if table.row_count else Text("none", "dim")


def _name(name: str, colours: dict[str, str]) -> Text:
    return Text(name, colours.get(name, "")) if name else Text("-", "dim")


def _badge(name: str, colours: dict[str, str]) -> Text:
    """The model whose turn it is, highlighted."""
    return Text(f" {name} ", f"bold reverse {colours.get(name, '')}") if name else Text("-", "dim")


def _table(*columns: str) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, collapse_padding=True, header_style="dim")
    for column in columns:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=True)
    return table


def _age(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
