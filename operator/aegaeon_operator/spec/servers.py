"""Notation of servers outside of a pool: hosts, addresses and networks."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from aegaeon_operator.spec.cel import field_rules
from aegaeon_proto.outbound.policy import ENTRY_PATTERN, parse_entry


def _entry(value: str) -> str:
    parse_entry(value)
    return value


# Rules for values that match the pattern and are still no valid port, address or network.
_BARE_IPV6 = "self.matches('^[^:]*:[^:]*:') && !self.contains('[') && !self.contains('://')"
_ENTRY_PORT = "self.find(':[0-9]+$')"
ENTRY_RULES = field_rules(
    (
        f"{_BARE_IPV6} || {_ENTRY_PORT} == '' || "
        f"(int({_ENTRY_PORT}.substring(1)) > 0 && int({_ENTRY_PORT}.substring(1)) < 65536)",
        "has an invalid port; ports are 1 to 65535",
    ),
    (
        f"({_BARE_IPV6}) ? (isIP(self) || (isCIDR(self) && cidr(self) == cidr(self).masked())) : "
        "self.contains('[') ? isIP(self.find('[0-9A-Fa-f:.]+]').replace(']', '')) : "
        "!self.matches('^(https?://)?[0-9.]+(/[0-9]+)?(:[0-9]+)?$') || isIP(self.find('[0-9.]+(/[0-9]+)?')) || "
        "(isCIDR(self.find('[0-9.]+/[0-9]+')) && "
        "cidr(self.find('[0-9.]+/[0-9]+')) == cidr(self.find('[0-9.]+/[0-9]+')).masked())",
        "is neither an address nor a network such as 10.0.0.0/8 without bits beyond its prefix",
    ),
)
AllowedSource = Annotated[
    str,
    Field(min_length=1, max_length=300, pattern=ENTRY_PATTERN, json_schema_extra=ENTRY_RULES),
    AfterValidator(_entry),
]
