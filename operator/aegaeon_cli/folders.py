"""Where things are when nothing else is said: models and latency constants below the cache folder, the quickstart."""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path

QUICKSTART = Path("examples/quickstart")


def quickstart() -> Path:
    """The quickstart's manifests: of the checkout that this is, else the copy that a wheel brings."""
    return QUICKSTART if QUICKSTART.is_dir() else Path(str(importlib.resources.files("aegaeon_cli") / "quickstart"))


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/aegaeon, or ~/.cache/aegaeon."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aegaeon"


def models_folder() -> Path:
    """Where `aegaeon models make` puts models and where a plain hostPath is looked up."""
    return cache_folder() / "models"


def constants_file() -> Path:
    """What `aegaeon calibrate` writes and `aegaeon up` hands to the scheduler."""
    return cache_folder() / "constants.json"
