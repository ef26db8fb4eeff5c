"""Who a model answers, whether over HTTP or in a batch."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from aegaeon_gateway.http.gateway import TENANT
from aegaeon_gateway.http.record import RECORD, Record
from aegaeon_gateway.tenancy import Tenant


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant with one request. Of a batch, its tokens are due `defer_s` later."""

    tenant: Tenant
    record: Record
    defer_s: float = 0.0

    @staticmethod
    def of(http: web.Request) -> Caller:
        """Of an HTTP request that was authenticated."""
        return Caller(http[TENANT], http[RECORD])
