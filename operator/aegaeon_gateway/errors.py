"""The package's errors. Messages say what is wrong, where, and what to do.

GatewayError
├── ConfigError              the configuration file
├── TokenizerError           this model's tokenizer cannot be loaded; the others go on
├── QueueFullError           a worker lane's queue is full
├── WireError                a worker or the fork server has ended
└── ApiError                 has an HTTP status and an OpenAI-shaped body
    ├── InvalidRequestError  400, names the parameter
    │   └── HttpError        400, 403, 404, 405, 408, 413 to 417, 431, 505: wrong before anybody reads the body
    ├── UnauthorizedError    401, no key or a wrong one
    ├── ModelNotFoundError   404, also for a model of another tenant
    ├── UnsupportedModelError  404, the engines cannot run such a model
    ├── ModelWithdrawnError  404, also in the middle of a stream
    ├── BodyTooLargeError    413, over the configured limit
    ├── PromptTooLongError   413, the body exceeds what the model's context can hold
    ├── RateLimitedError     429 with Retry-After
    ├── ConnectionsError     429, too many connections of one address
    ├── EngineError          500
    └── UnavailableError     503, with or without Retry-After
        └── TextDroppedError  the model's text made room for others before a worker had the job
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


class GatewayError(Exception):
    """The root: catching it catches everything this package raises on purpose."""


class ConfigError(GatewayError):
    """The configuration file cannot be used."""


class TokenizerError(GatewayError):
    """A model whose tokenizer cannot be loaded."""


class QueueFullError(GatewayError):
    """This owner, or all together, wait for too much of a worker lane already."""


class WireError(GatewayError):
    """A worker or the fork server ended in the middle of a message, or sent none of ours."""


class ApiError(GatewayError):
    """The error that a client receives: `status` is HTTP's, `kind`, `code` and `param` are OpenAI's."""

    status = 500
    kind = "server_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    @property
    def headers(self) -> dict[str, str]:
        return {}

    @property
    def outcome(self) -> str:
        """How a request that met this error ended, in metrics."""
        return self.code or f"http_{self.status}"

    def body(self) -> dict[str, Any]:
        message = self.message.encode(errors="replace").decode()  # a path may hold what is no UTF-8
        return {"error": {"message": message, "type": self.kind, "param": self.param, "code": self.code}}


class InvalidRequestError(ApiError):
    """The request is wrong; `param` says where."""

    status = 400
    kind = "invalid_request_error"


class HttpError(InvalidRequestError):
    """The request is wrong as HTTP, whatever its body says; `status` says how."""

    def __init__(self, message: str, *, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, code=code)
        self.status = status
        self._headers = dict(headers or {})

    @property
    def headers(self) -> dict[str, str]:
        return self._headers


class ConnectionsError(ApiError):
    """One address has more connections than it may."""

    status = 429
    kind = "requests"

    def __init__(self) -> None:
        super().__init__("There are too many connections from your address; close some.", code="too_many_connections")

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"}


class UnauthorizedError(ApiError):
    """No API key where one is needed, or an unknown one. The message never holds the key."""

    status = 401
    kind = "invalid_request_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key")

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class RateLimitedError(ApiError):
    """The quota of a tenant or a model is used up. `who` is "tenant NAME" or "model NAME", `what` what is counted."""

    status = 429

    def __init__(self, who: str, what: str, per_minute: float, retry_after_s: float) -> None:
        message = f"The quota of {who} is used up: {per_minute:g} {what} a minute. Try again later."
        super().__init__(message, code="rate_limit_exceeded")
        self.kind = what
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}


class PromptExceedsQuotaError(InvalidRequestError):
    """A prompt that no waiting makes room for: it alone is more than a minute's quota."""

    def __init__(self, who: str, per_minute: float, tokens: int) -> None:
        message = (
            f"The prompt has {tokens} tokens, more than the quota of {who} allows in a minute: {per_minute:g}. Send a "
            "shorter one, or ask for a larger quota."
        )
        super().__init__(message, code="prompt_exceeds_quota")


class ModelNotFoundError(ApiError):
    """No such model; the message names those that are served."""

    status = 404
    kind = "invalid_request_error"

    def __init__(self, model: str, served: Iterable[str]) -> None:
        names = ", ".join(sorted(served)) or "none"
        message = f"The model {model!r} does not exist. Served here: {names}."
        super().__init__(message, param="model", code="model_not_found")


class UnsupportedModelError(ApiError):
    """The engines cannot run such a model. A status that clients do not repeat: only the model's owner can help."""

    status = 404
    kind = "invalid_request_error"

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(_not_served(model, reason), param="model", code="model_unsupported")


class ModelWithdrawnError(ApiError):
    """The model was served when the request came, and is not any more."""

    status = 404
    kind = "invalid_request_error"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model {model!r} was withdrawn before this request could end.", param="model", code="model_not_found"
        )


class ModelChangedError(ApiError):
    """The name stands for another model than the prompt was made for. Before the first token it is made anew."""

    status = 503

    def __init__(self, model: str) -> None:
        message = f"The model {model!r} was changed before this request could end; try again."
        super().__init__(message, param="model", code="model_changed")

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"}


class BodyTooLargeError(ApiError):
    """The body is over the configured limit (bytes)."""

    status = 413
    kind = "invalid_request_error"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The body is larger than {limit_bytes} bytes; send less.", code="body_too_large")


class PromptTooLongError(ApiError):
    """No prompt in a body of this size fits the model's context."""

    status = 413
    kind = "invalid_request_error"


class EngineError(ApiError):
    """The engine could not go on with this request."""


def fault(request: str) -> ApiError:
    """A defect of the gateway itself; its log has the traceback under the same id."""
    return EngineError(f"The gateway failed on this request ({request}); its log says why.")


class UnavailableError(ApiError):
    """Not at present. `retry_after_s` None: coming back soon will not help (the model failed)."""

    status = 503

    def __init__(self, message: str, *, code: str, retry_after_s: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}


class TextDroppedError(UnavailableError):
    """The text of a model was dropped after its loading and before a worker had the job. Loading it again helps."""

    def __init__(self) -> None:
        message = "The model's tokenizer was dropped to make room for those of others; try again."
        super().__init__(message, code="overloaded", retry_after_s=1.0)


def overloaded(message: str, retry_after_s: float = 1.0) -> UnavailableError:
    """503 for "no room" and "not started yet": the same request may succeed after `retry_after_s` seconds."""
    return UnavailableError(message, code="overloaded", retry_after_s=retry_after_s)


def model_failed(model: str, reason: str) -> UnavailableError:
    """503 for a model that cannot be served until it is repaired."""
    return UnavailableError(_not_served(model, reason), code="model_failed")


def _not_served(model: str, reason: str) -> str:
    return f"The model {model!r} cannot be served: {reason}"


def too_slow(part: str) -> HttpError:
    """408: the header or the body did not come in time."""
    return HttpError(f"The request's {part} did not arrive in time.", status=408, code="request_timeout")


def header_too_large(limit_bytes: int) -> HttpError:
    """431: the header as a whole."""
    message = f"The request's header is larger than {limit_bytes} bytes; send less."
    return HttpError(message, status=431, code="header_too_large")
