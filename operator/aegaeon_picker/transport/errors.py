"""What ends a call, and what ends a connection."""

from __future__ import annotations

from enum import IntEnum

from h2.errors import ErrorCodes

from aegaeon_picker.errors import PickerError
from aegaeon_picker.transport.limits import Reason


class Status(IntEnum):
    """Those of gRPC's that are used here."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class CallError(PickerError):
    """Ends a call with a status other than OK."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


class PeerError(PickerError):
    """Ends a connection with GOAWAY. `reason` is what metrics and logs count it under."""

    def __init__(self, reason: Reason, message: str, code: ErrorCodes = ErrorCodes.ENHANCE_YOUR_CALM) -> None:
        super().__init__(message)
        self.reason, self.code = reason, code
