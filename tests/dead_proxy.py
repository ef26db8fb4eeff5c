"""An environment as companies have it, with a proxy that leads nowhere: what uses it fails at once."""

from __future__ import annotations

import pytest

DEAD = "http://127.0.0.1:9"
_NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
ENVIRONMENT = dict.fromkeys((*_NAMES, *map(str.upper, _NAMES)), DEAD)


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a test's processes in this environment."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
