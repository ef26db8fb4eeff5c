"""Where things of this user live when nothing else is said: models and latency constants, below the cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/aegaeon, or ~/.cache/aegaeon."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aegaeon"


def models_folder() -> Path:
    """Where `aegaeon models make` puts models and where a plain hostPath is looked up."""
    return cache_folder() / "models"


def constants_file() -> Path:
    """What `aegaeon calibrate` writes and `aegaeon up` hands to the scheduler."""
    return cache_folder() / "constants.json"
