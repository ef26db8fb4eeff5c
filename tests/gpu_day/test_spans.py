"""Loads whose pages are locked are held against the link; a first load, which nothing has locked for, is apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.gpu_day.spans import FIRST, LATER, copy_rows
from benchmarks.report import Row

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import SchedulerConfig
from aegaeon_scheduler.core.domain import CommandId, InstanceId, Memory, ModelName, Role, SeqId
from aegaeon_scheduler.core.log import LogWriter

ENGINE, MEMORY = InstanceId("e"), Memory(40, 40)
GB, LINK_GB_S = 10**9, 50.0
Copy = tuple[cmd.Body, float, int]  # with the seconds and bytes of its report


def load(model: str) -> cmd.Load:
    return cmd.Load(ModelName(model), 10, False)


def up(incarnation: str) -> ev.InstanceUp:
    return ev.InstanceUp(ENGINE, incarnation, "n", Role.UNIFIED, "d", 1 << 20, 40, 40, 8, MEMORY)


def rows_of(record: Path, *happened: ev.InstanceUp | Copy) -> dict[str, Row]:
    """Writes a log in which these follow each other."""
    with record.open("w") as out:
        log = LogWriter(out, SchedulerConfig(), "test")
        for number, entry in enumerate(happened):
            if isinstance(entry, ev.InstanceUp):
                log.write(number, entry, [])
                continue
            body, seconds, nbytes = entry
            log.write(number, ev.Tick(), [cmd.Send(ENGINE, CommandId(number), body, (), "test")])
            log.write(number, ev.CommandDone(ENGINE, CommandId(number), seconds, MEMORY, nbytes), [])
    return {row.figure: row for row in copy_rows(record, LINK_GB_S)}


def test_slow_first_loads_do_not_hide_the_rate_of_later_ones_that_copy_less(tmp_path: Path) -> None:
    first = [(load(model), 1.0, 16 * GB) for model in "abc"]
    rows = rows_of(tmp_path / "log", up("1"), *first, *[(load(model), 0.28, 13 * GB) for model in "abcab"])
    assert rows["weights in: copies"].value == 8
    assert rows[f"{FIRST}: copies"].value == 3
    assert rows[f"{FIRST}: rate of all"].value == pytest.approx(16)
    assert rows[f"{LATER}: span, median"].value == pytest.approx(280)
    held = rows[f"{LATER}: spans of all (limit: bytes / link)"]
    assert held.ratio == pytest.approx(0.28 * LINK_GB_S / 13)
    assert held.holds


def test_later_loads_at_the_rate_of_unlocked_pages_miss_their_bar(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "log", up("1"), (load("a"), 0.3, 13 * GB), (load("a"), 1.0, 13 * GB))
    assert not rows[f"{LATER}: spans of all (limit: bytes / link)"].holds


def test_a_restarted_engine_loads_for_the_first_time_again_and_one_that_comes_back_does_not(tmp_path: Path) -> None:
    loads = (load("a"), 0.3, 13 * GB)
    rows = rows_of(tmp_path / "log", up("1"), loads, up("1"), loads, up("2"), loads)
    assert (rows[f"{FIRST}: copies"].value, rows[f"{LATER}: copies"].value) == (2, 1)


def test_copies_of_kv_are_kinds_of_their_own(tmp_path: Path) -> None:
    swap = (cmd.SwapOut(SeqId("r", 0), 1), 0.01, GB)
    rows = rows_of(tmp_path / "log", up("1"), swap, (cmd.Load(ModelName("a"), 10, False), 0.01, 0))
    assert rows["KV out: rate of all"].value == pytest.approx(100)
    assert rows["weights in: copies"].value == 0  # what moved no bytes is no copy
