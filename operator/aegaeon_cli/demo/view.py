"""Views of one moment: a table of engines and the chats in progress. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aegaeon_cli.demo.traffic import Exchange
from aegaeon_proto.v1.gateway_pb2 import InstanceStatus, PoolStatus

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
TAIL = 56  # characters of an answer


def picture(status: PoolStatus, exchanges: Sequence[Exchange]) -> RenderableType:
    """The engines above, the newest chat of every client below."""
    head = Text(headline(status, exchanges), "bold")
    return Group(head, Text(), _engines(status), *_reasons(status), Text(), _chats(status, exchanges))


def line(status: PoolStatus, exchanges: Sequence[Exchange]) -> str:
    """The same state in one line, for a log."""
    engines = ", ".join(
        f"{engine.instance} runs {engine.running or 'nothing'} (holds {' '.join(engine.resident) or 'nothing'})"
        for engine in status.instances
    )
    return f"{headline(status, exchanges)} | {engines}"


def headline(status: PoolStatus, exchanges: Sequence[Exchange]) -> str:
    """Totals: time, tokens received, switches, requests done, running and queued."""
    tokens = sum(len(exchange.tokens) for exchange in exchanges)
    live = sum(exchange.live for exchange in exchanges)
    queued = sum(model.queued for model in status.models)
    switches = sum(engine.switches for engine in status.instances)
    return (
        f"{status.uptime_s:6.1f} s  {tokens:5d} tokens  {switches:4d} switches  "
        f"{len(exchanges) - live:3d} done  {live:2d} open  {queued:2d} queued"
    )


def _engines(status: PoolStatus) -> Table:
    table = _table("engine", "runs", "loads", "holds", "memory", "switches")
    names = [model.model for model in status.models]
    for engine in status.instances:
        table.add_row(
            engine.instance if engine.alive else f"{engine.instance} (lost)",
            coloured([engine.running] if engine.running else [], names),
            coloured([engine.loading] if engine.loading else [], names),
            coloured(sorted(engine.resident), names),
            _memory(engine),
            str(engine.switches),
        )
    return table


def _reasons(status: PoolStatus) -> list[Text]:
    return [
        Text(f"{engine.instance}: {engine.reason}", "dim", no_wrap=True, overflow="ellipsis")
        for engine in status.instances
        if engine.reason
    ]


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _memory(engine: InstanceStatus) -> str:
    used = engine.slabs - engine.memory.slabs_free
    filled = round(10 * used / engine.slabs) if engine.slabs else 0
    return f"{'#' * filled}{'.' * (10 - filled)} {used}/{engine.slabs}"


def _chats(status: PoolStatus, exchanges: Sequence[Exchange]) -> Table:
    names = [model.model for model in status.models]
    states = {seq.seq.request: seq.state for seq in status.sequences}
    table = _table("model", "tokens", "state", "answer")
    for exchange in _newest(exchanges):
        state = states.get(exchange.request, "sent") if exchange.live else exchange.finish_reason or "error"
        text = (exchange.error or exchange.text).replace("\n", " ")
        table.add_row(coloured([exchange.chat.model], names), f"{len(exchange.tokens):4d}", state, Text(text[-TAIL:]))
    return table


def _newest(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Every open exchange, then the last ended ones, at most eight, by model."""
    ranked = sorted(exchanges, key=lambda exchange: (not exchange.live, -exchange.sent))[:8]
    return sorted(ranked, key=lambda exchange: (exchange.chat.model, exchange.sent))


def coloured(models: Sequence[str], names: Sequence[str]) -> Text:
    """Model names, each in its own colour."""
    words = [Text(model, COLOURS[names.index(model) % len(COLOURS)] if model in names else "") for model in models]
    return Text(" ").join(words)
