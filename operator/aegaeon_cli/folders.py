"""Default locations: models and latency constants below the cache folder, the quickstart's manifests."""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path

QUICKSTART = Path("examples/quickstart")


def quickstart() -> Path:
    """The quickstart's manifests: those of this checkout, else the copy in the wheel."""
    return QUICKSTART if QUICKSTART.is_dir() else Path(str(importlib.resources.files("aegaeon_cli") / "quickstart"))


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/aegaeon, or ~/.cache/aegaeon."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aegaeon"


def models_folder() -> Path:
    """The folder that `aegaeon models make` writes, and in which a plain hostPath is looked up."""
    return cache_folder() / "models"


def constants_file() -> Path:
    """The file that `aegaeon calibrate` writes and `aegaeon up` passes to the scheduler."""
    return cache_folder() / "constants.json"
