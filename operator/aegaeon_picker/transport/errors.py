"""Errors that end a call or a connection."""

from __future__ import annotations

from enum import IntEnum

from h2.errors import ErrorCodes

from aegaeon_picker.errors import PickerError
from aegaeon_picker.transport.limits import Reason


class Status(IntEnum):
    """The gRPC status codes in use."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class CallError(PickerError):
    """An error that ends a call with a status other than OK."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


class PeerError(PickerError):
    """An error that ends a connection with GOAWAY. `reason`: label in metrics and logs."""

    def __init__(self, reason: Reason, message: str, code: ErrorCodes = ErrorCodes.ENHANCE_YOUR_CALM) -> None:
        super().__init__(message)
        self.reason, self.code = reason, code
