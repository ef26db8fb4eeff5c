"""vLLM's warnings about each model are in the log once in a while; nothing else is left out."""

from __future__ import annotations

import logging

from aegaeon_sidecar.backends.vllm.log_filter import EVERY_S, RepeatFilter


def record(name: str, line: int, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord(name, level, "config.py", line, "the seed of %s", ("a model",), None)


def test_a_warning_passes_once_in_a_while_and_other_places_errors_and_loggers_as_ever() -> None:
    now = 0.0
    once = RepeatFilter("vllm", lambda: now)
    assert [once.filter(record("vllm.config", 1)) for _ in range(3)] == [True, False, False]
    assert once.filter(record("vllm.config", 2))
    assert [once.filter(record("vllm.config", 1, logging.ERROR)) for _ in range(2)] == [True, True]
    assert [once.filter(record("aegaeon_sidecar", 1)) for _ in range(2)] == [True, True]
    now = EVERY_S
    assert once.filter(record("vllm.config", 1))
