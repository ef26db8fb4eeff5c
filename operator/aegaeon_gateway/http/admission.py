"""Who asks, and how large a body may be before anybody looks into it."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_gateway.errors import PromptTooLongError, UnauthorizedError
from aegaeon_gateway.http.endpoints import Endpoint
from aegaeon_gateway.tenancy import Directory, Tenant
from aegaeon_gateway.workers.bounds import BYTES_PER_TOKEN

PEEK_BYTES = 1 << 20
"""a body up to this is skimmed for its model on the loop, 3 ms at worst; a larger one by a worker"""
_SLACK_BYTES = 64 << 10
"""for what is in a body beside the prompt"""
UNKNOWN_BODY_BYTES = 1 << 40
"""where no length is known only the configured limit counts"""


@dataclass(frozen=True, slots=True)
class Client:
    """A tenant, or a client without a key, and what it may use now."""

    tenant: Tenant
    directory: Directory

    @property
    def owner(self) -> str:
        """Whose share of the gateway's memory a request takes."""
        return self.tenant.name

    @property
    def shared(self) -> bool:
        """True when other owners need room too."""
        return self.directory.open_models is not None

    def owner_of(self, model: str) -> str:
        """Whose turn at the workers a request takes: clients without a key are distinguished by their model."""
        return self.tenant.name or f"\0{model}"

    def check_any(self) -> None:
        """Raises UnauthorizedError when there is no model that the client may use."""
        if self.tenant.anonymous and self.shared and not self.directory.open_models:
            raise UnauthorizedError("Models need an API key; send it as `Authorization: Bearer KEY`.")


def body_bytes(length: int, endpoint: Endpoint) -> int:
    """The most bytes of a body for a model of `length` tokens; some endpoints take many prompts."""
    if not length:
        return UNKNOWN_BODY_BYTES
    return _SLACK_BYTES + length * BYTES_PER_TOKEN * endpoint.prompts


def check_body(size: int, length: int, endpoint: Endpoint) -> None:
    """Raises PromptTooLongError before anything of the body is looked at but its model."""
    if size > (most := body_bytes(length, endpoint)):
        message = (
            f"The body has {size} bytes, but this model's maximum context length is {length} tokens, for which "
            f"{most} bytes are allowed; send less."
        )
        raise PromptTooLongError(message, param=endpoint.param, code="context_length_exceeded")
