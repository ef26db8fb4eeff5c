"""Errors of requests to a source. Messages are redacted and may be shown to tenants.

OutboundError
├── RefusedError      not retryable: not allowed, not valid, too much, too slow
├── UnreachableError  the connection or the answer broke off; another try may bring more
└── GivenUpError      cancelled by the caller
"""


class OutboundError(Exception):
    """Base of the errors of this package."""


class RefusedError(OutboundError):
    """The address is not allowed, or the answer exceeds the limits."""


class UnreachableError(OutboundError):
    """The server cannot be reached, or its answer broke off."""


class GivenUpError(OutboundError):
    """The caller cancelled the request."""
