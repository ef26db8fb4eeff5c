"""The records of files and batches in the store, and their form in OpenAI's API."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

Json = dict[str, Any]

COMPLETION_WINDOWS = {"24h": 86400}
"""seconds, by OpenAI's names"""
OVER = frozenset({"failed", "completed", "expired", "cancelled"})
"""states that do not change any more"""


class FileRecord(Struct, frozen=True, omit_defaults=True):
    """A file of a tenant. Times are unix seconds."""

    id: str
    nbytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str

    def shown(self) -> Json:
        """As the API shows it."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.nbytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class Order(Struct, frozen=True, omit_defaults=True):
    """The batch that a client created; it never changes. `output_s`: seconds that its files are kept."""

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    output_s: int
    metadata: dict[str, str] | None = None


class Fault(Struct, frozen=True, omit_defaults=True):
    """A fault of an input file; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Progress(Struct, frozen=True, omit_defaults=True):
    """How far a batch is: the word of the gateway that works on it. Times are unix seconds, 0: not yet."""

    status: str = "validating"
    total: int = 0
    completed: int = 0
    failed: int = 0
    in_progress_at: int = 0
    finalizing_at: int = 0
    ended_at: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def over(self) -> bool:
        return self.status in OVER


def shown(order: Order, progress: Progress, cancelling_at: int) -> Json:
    """A batch as the API shows it; `cancelling_at` 0: it was not cancelled."""
    status = "cancelling" if cancelling_at and not progress.over else progress.status
    faults = [{**msgspec.to_builtins(fault), "param": fault.param, "line": fault.line} for fault in progress.faults]
    ended = {f"{state}_at": progress.ended_at if progress.status == state else None for state in sorted(OVER)}
    return {
        "id": order.id,
        "object": "batch",
        "endpoint": order.endpoint,
        "errors": {"object": "list", "data": faults} if faults else None,
        "input_file_id": order.input_file_id,
        "completion_window": order.completion_window,
        "status": status,
        "output_file_id": progress.output_file_id,
        "error_file_id": progress.error_file_id,
        "created_at": order.created_at,
        "in_progress_at": progress.in_progress_at or None,
        "expires_at": order.expires_at,
        "finalizing_at": progress.finalizing_at or None,
        **ended,
        "cancelling_at": cancelling_at or None,
        "request_counts": {"total": progress.total, "completed": progress.completed, "failed": progress.failed},
        "metadata": order.metadata,
    }
