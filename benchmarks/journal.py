"""Records of a long measurement in a file of JSON lines, so that it can be made in several sittings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Journal:
    """What was measured so far, and what is measured now. Without a file it is of this process alone."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        lines = file.read_text("utf-8").splitlines() if file is not None and file.exists() else []
        self.records: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def add(self, record: dict[str, Any]) -> None:
        """Written at once: the end of the process loses nothing."""
        self.records.append(record)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(record) + "\n")
