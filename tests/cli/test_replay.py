"""`aegaeon replay` on a log of the real core, as it is and tampered with."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from aegaeon_cli.main import main
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import SchedulerConfig
from aegaeon_scheduler.core.domain import GatewayId, ModelConfig, ModelName, SeqId, Slo
from aegaeon_scheduler.core.log import LogWriter
from aegaeon_scheduler.core.scheduler import Scheduler

LLAMA = ModelName("llama")
EVENTS: list[ev.Event] = [
    ev.CatalogChanged((ModelConfig(LLAMA, Slo(1.0, 0.1)),)),
    ev.Submitted(SeqId("r1", 0), 1, GatewayId("g"), LLAMA, 1.0, 10, 0, 20),
    ev.Submitted(SeqId("r2", 0), 1, GatewayId("g"), ModelName("unknown"), 1.0, 10, 0, 20),
    ev.Cancelled(SeqId("r1", 0)),
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What a scheduler without engines decides about four events."""
    file, config = tmp_path / "events.log", SchedulerConfig()
    scheduler = Scheduler(config)
    with file.open("w", encoding="utf-8") as out:
        writer = LogWriter(out, config, "0.1.0")
        for number, event in enumerate(EVENTS):
            writer.write(float(number), event, scheduler.on(float(number), event))
    return file


def replayed(log: Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["replay", str(log)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


def test_an_unmodified_log_gives_the_same_commands(log: Path) -> None:
    code, output = replayed(log)
    assert code == 0
    assert output.startswith("identical commands: 4 events, ")
    assert "recorded by version 0.1.0" in output


def test_a_log_with_another_decision_in_it_names_the_first_difference(log: Path) -> None:
    text = log.read_text("utf-8")
    assert '"unknown_model"' in text
    log.write_text(text.replace('"unknown_model"', '"too_long"'), "utf-8")
    code, output = replayed(log)
    assert code == 1
    assert "different commands" in output
    assert "event 3 at 2.000000 s, Submitted" in output


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"{}", b'{"log":1}', b'{"log":2}', b'{"log":3,"version":"1","config":3}', b"\xff\xfe"]
)
def test_a_file_that_is_not_a_log_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "other.log"
    file.write_bytes(content)
    code, output = replayed(file)
    assert code == 2
    assert output.startswith(f"Error: {file}")


def test_a_log_that_was_cut_short_names_the_line(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-20])
    code, output = replayed(log)
    assert code == 2
    assert "line 5" in output


def test_a_log_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    code, output = replayed(tmp_path / "gone")
    assert code == 2
    assert "does not exist" in output
