"""Parts of pages that are made whole: bars that are missed, conditions of runs, the tables of the run beside others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from benchmarks.conditions import paths_of
from benchmarks.pages.fields import FIELD, OLD, FieldError, Fields
from benchmarks.pages.records import PEER_KEYS, Record

ENGINE = ("copies", "kv_copies", "switch", "load", "cache", "engine", "prefix", "slabs", "slab_sizes")
BLOCK = re.compile(r"(<!-- ([a-z0-9-]+): made by `make generate` -->\n)(.*?)(<!-- end of \2 -->)", re.DOTALL)


def has(page: str, name: str) -> bool:
    """Whether the page has this block."""
    return any(match[2] == name for match in BLOCK.finditer(page))


def lines_of(name: str, page: str, fields: Fields) -> str | None:
    """The lines of a block of a page; None: another program makes it. Raises FieldError."""
    if name in _OTHERS:
        return None
    if name not in _BLOCKS:
        raise FieldError(f"no block is called `{name}`; there are {', '.join(_BLOCKS)}")
    return "\n" + "\n".join(_BLOCKS[name](page, fields)) + "\n\n"


def _missed(_page: str, fields: Fields) -> Iterator[str]:
    """Every recorded bar that is missed."""
    yield "| missed | measured | bar | run |\n|---|---|---|---|"
    for name in fields.records.names():
        for row in fields.records.rows(name):
            if not row["holds"]:
                what = row["figure"].removeprefix(f"{name}: ").replace("|", "\\|")
                measured = f"{row['value']:,.4g} {row['unit']}"
                yield f"| `{name}`: {what} | {measured} | {bound(row)} | {fields.run(name, [row])} |"


def _measured(_page: str, fields: Fields) -> Iterator[str]:
    """Every row of the benchmarks of an engine's memory."""
    yield "| benchmark | figure | value | bar | | run |\n|---|---|---|---|---|---|"
    for name in ENGINE:
        for row in fields.records.rows(name):
            figure = row["figure"].removeprefix(f"{name}: ")
            bar = "" if row["limit"] is None else bound(row)
            kept = "" if row["limit"] is None else ("holds" if row["holds"] else "**missed**")
            value = f"{row['value']:,.4g} {row['unit']}"
            yield f"| `{name}` | {figure} | {value} | {bar} | {kept} | {fields.run(name, [row])} |"


def bound(row: Record) -> str:
    """`at most 0.5 ms`; `at least 0.9 x 19.9 GB/s` where the limit was measured too."""
    sense, threshold = row["bar"].split()[:2]
    factor = "" if threshold == "1" else f"{threshold} x "
    limit = f"{row['limit']:,.0f}" if row["limit"] >= 1000 else f"{row['limit']:.3g}"
    return f"{'at least' if sense == '>=' else 'at most'} {factor}{limit} {row['unit']}"


def _older(page: str, fields: Fields) -> Iterator[str]:
    """Which runs on this page are older than the last change of what they measure."""
    old: dict[str, Record] = {}
    for file, name, *_ in FIELD.findall(page):
        for row in fields.rows_of(file, name):
            if fields.records.is_old(file, row):
                old[file] = row
    if not old:
        yield "No figure on this page is older than the last change of what it measures."
        return
    runs = (f"`{name}` ({row['date'] or 'unknown'}, {row['commit'] or 'unknown'})" for name, row in sorted(old.items()))
    yield f"{OLD} What these runs measure has changed since, or its state was not recorded: {', '.join(runs)}."
    yield "`git log COMMIT..` with the paths in `benchmarks/figures.toml` lists the changes."


def _runs(_page: str, fields: Fields) -> Iterator[str]:
    """The conditions of each result file, and whether it is old."""
    yield "| run | date | commit | machine | load | measures |\n|---|---|---|---|---|---|"
    for name in fields.records.names():
        yield f"| `{name}` | " + " | ".join(_run(name, fields)) + " |"


def _run(name: str, fields: Fields) -> Iterator[str]:
    rows = fields.records.rows(name)
    row = max(rows, key=lambda row: row["date"] or "")
    yield fields.run(name, rows)
    yield row["commit"] or "unknown"
    yield f"{row['machine'] or 'unknown'}, {row['cores'] or '?'} cores, {row.get('cpu_level') or 'level unknown'}"
    yield "unknown" if row["load"] is None else str(row["load"])
    yield ", ".join(f"`{path}`" for path in paths_of(name))


def _peers(name: str) -> Callable[[str, Fields], Iterator[str]]:
    def table(_page: str, fields: Fields) -> Iterator[str]:
        yield "| | tokens on time at 0.3, 1 and 2 prompts/s | TTFT p99 | memory | lost at a switch |"
        yield "|---|---|---|---|---|"
        systems: dict[str, list[Record]] = {}
        for row in fields.records.rows(name):
            systems.setdefault(row["system"], []).append(row)
        for system, rows in systems.items():
            values = {key: [row["value"] for row in rows if row["key"] == key] for key in PEER_KEYS}
            on_time = ", ".join(f"{100 * share:.0f}" for share in values["on_time"])
            first = ", ".join("never" if seconds is None else f"{seconds:.1f} s" for seconds in values["ttft_p99_s"])
            what = re.sub(r"^aegaeon, (\w+)$", r"this project, `backend: \1`", system)
            yield f"| {what} | {on_time} % | {first} | {max(values['mib']) / 1024:.1f} GiB | {rows[0]['loses']} |"

    return table


_BLOCKS: Mapping[str, Callable[[str, Fields], Iterator[str]]] = {
    "missed": _missed,
    "measured": _measured,
    "older": _older,
    "runs": _runs,
    "peers": _peers("peers"),
    "peers-avx2": _peers("peers-avx2"),
}
_OTHERS = {"families", "architectures"}  # of tests/backend_vllm/rows.py
