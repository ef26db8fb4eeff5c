"""Errors that concern a single model or adapter, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aegaeon_native import NativeError
from aegaeon_proto.redaction import sentence
from aegaeon_sidecar.domain.errors import ModelError, SidecarError

MODEL_ERRORS = (SidecarError, NativeError, OSError, MemoryError)
"""with sentences that can be a model's reason"""


@contextmanager
def understood() -> Iterator[None]:
    """Numbers in a model's files may make the backend raise anything, which is that model's trouble alone."""
    try:
        yield
    except MODEL_ERRORS:
        raise
    except Exception as error:  # a tenant's numbers: what a list of types lacks would end the engine
        raise ModelError(f"its files cannot be parsed: {sentence(error)}") from error
