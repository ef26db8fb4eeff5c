"""Why a request to a source did not bring what was asked for. Messages are redacted and may be shown to tenants.

OutboundError
├── RefusedError      not retryable: not allowed, not valid, too much, too slow
├── UnreachableError  the connection or the answer broke off; another try may bring more
└── GivenUpError      cancelled by the caller
"""


class OutboundError(Exception):
    """The root."""


class RefusedError(OutboundError):
    """The address may not be reached, or what is there goes beyond the limits."""


class UnreachableError(OutboundError):
    """The server cannot be reached, or its answer broke off."""


class GivenUpError(OutboundError):
    """`cancelled` said so."""
