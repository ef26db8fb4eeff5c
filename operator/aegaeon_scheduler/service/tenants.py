"""The tenants document: handed on to gateways as it is, once it makes sense. It holds no keys, only their hashes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError

from aegaeon_proto.v1 import gateway_pb2
from aegaeon_scheduler.errors import ConfigError, RequestError

_SHA256 = re.compile("[0-9a-f]{64}")


def checked(tenants: gateway_pb2.Tenants) -> gateway_pb2.Tenants:
    """The document itself. Raises RequestError with all for which gateways could not use it."""
    problems = list(dict.fromkeys(_problems(tenants)))
    if problems:
        raise RequestError("; ".join(problems))
    return tenants


def _problems(tenants: gateway_pb2.Tenants) -> Iterator[str]:
    names: set[str] = set()
    owners: dict[str, str] = {}
    for tenant in tenants.tenants:
        if not tenant.name or tenant.name in names:
            yield f"tenant {tenant.name or 'without a name'}: names must be given, and unique"
        names.add(tenant.name)
        for key in tenant.key_sha256:
            if not _SHA256.fullmatch(key):
                yield f"tenant {tenant.name}: key_sha256 must be SHA-256 in 64 hexadecimal digits"
            if owners.setdefault(key, tenant.name) != tenant.name:
                yield f"tenants {owners[key]} and {tenant.name} have the same key; give each its own"


def configured(document: dict[str, Any]) -> gateway_pb2.Tenants:
    """The document as a configuration file has it. Raises ConfigError."""
    try:
        return checked(ParseDict(document, gateway_pb2.Tenants()))
    except (ParseError, RequestError) as error:
        raise ConfigError(f"tenants: {error}") from error
