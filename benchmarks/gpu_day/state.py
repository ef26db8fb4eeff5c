"""Which stages are over: a file that is written anew after each, so that a later call continues behind them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Outcome = Literal["running", "finished", "bars missed", "failed", "timed out", "skipped"]
_MOST_TRIES = 2  # of a stage in which the machine was lost


@dataclass(frozen=True, slots=True)
class Record:
    """Of one stage. `seconds`: how long its last try took."""

    outcome: Outcome
    tries: int
    seconds: float = 0.0


class State:
    """The records by stage. A stage that was running when the process ended is due again, once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._records: dict[str, Record] = {}
        if file.exists():
            stored = json.loads(file.read_text("utf-8"))
            self._records = {name: Record(**record) for name, record in stored.items()}

    def __getitem__(self, stage: str) -> Record | None:
        return self._records.get(stage)

    def is_over(self, stage: str, failed_again: bool = False) -> bool:
        """Whether it needs no further try. `failed_again`: those that failed do."""
        record = self._records.get(stage)
        if record is None:
            return False
        if record.outcome == "running":
            return record.tries >= _MOST_TRIES
        return not (failed_again and record.outcome in ("failed", "timed out"))

    def begin(self, stage: str) -> None:
        """It runs from now on."""
        record = self._records.get(stage)
        self._records[stage] = Record("running", 1 + (record.tries if record else 0))
        self._write()

    def end(self, stage: str, outcome: Outcome, seconds: float) -> None:
        """It is over."""
        self._records[stage] = Record(outcome, self._records[stage].tries, round(seconds, 1))
        self._write()

    def outcomes(self) -> dict[str, Outcome]:
        """By stage."""
        return {name: record.outcome for name, record in self._records.items()}

    def _write(self) -> None:
        draft = self._file.with_suffix(".new")
        draft.write_text(json.dumps({name: asdict(record) for name, record in self._records.items()}, indent=1) + "\n")
        draft.replace(self._file)
