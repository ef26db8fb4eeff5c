"""Models and tenants that a configuration file has beside it: in `*.json` of the folder scheduler.d of scheduler.json.

One Secret could not hold them. Where such files are, the models and tenants of the configuration file do not count.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aegaeon_proto.parts import joined
from aegaeon_scheduler.errors import ConfigError


def with_parts(path: Path, text: bytes) -> bytes:
    """The content of a configuration file with those of its folder. Raises ConfigError."""
    files = sorted(path.with_suffix(".d").glob("*.json"))
    if not files:
        return text
    parts = [part for file in files for part in _read(file)]
    return json.dumps(_read(path) | joined(parts)).encode()


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from error
