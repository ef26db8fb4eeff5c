"""The way out of a network that has a proxy. Descriptions are what `kubectl explain` prints."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from aegaeon_operator.spec.base import ConfigMapRef, SecretRef, Strict
from aegaeon_operator.spec.cel import rules
from aegaeon_operator.spec.servers import ENTRY_RULES
from aegaeon_proto.outbound.policy import parse_entry

_HOST = r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?([.][A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
_PORT = r"(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?"
PROXY_PATTERN = rf"^http://{_HOST}{_PORT}/?$"
DIRECT_PATTERN = rf"^([*]|([*]?[.])?{_HOST}{_PORT}|[0-9.]+/[0-9]{{1,2}}|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]+(/[0-9]{{1,3}})?)$"
_NO_PROXY = "credentialsSecretRef needs httpsProxy or httpProxy, whose credentials it holds"


def _direct(value: str) -> str:
    parse_entry(value.removeprefix("."))
    return value


ProxyUrl = Annotated[str, Field(min_length=1, max_length=300, pattern=PROXY_PATTERN)]
Direct = Annotated[
    str,
    Field(
        min_length=1,
        max_length=300,
        pattern=DIRECT_PATTERN,
        json_schema_extra=ENTRY_RULES,
    ),
    AfterValidator(_direct),
]


class Egress(Strict):
    """By which proxy pods reach servers outside of the cluster, and whose certificates they trust there."""

    model_config = rules(
        ("!has(self.credentialsSecretRef) || has(self.httpsProxy) || has(self.httpProxy)", _NO_PROXY),
    )

    https_proxy: ProxyUrl | None = Field(
        default=None,
        description="http://HOST:PORT of the proxy for https:// URLs, which it tunnels (CONNECT), and for traces over "
        "TLS. Without user and password: those are in `credentialsSecretRef`.",
    )
    http_proxy: ProxyUrl | None = Field(
        default=None, description="The same for http:// URLs; traces without TLS are tunnelled through it."
    )
    no_proxy: Annotated[tuple[Direct, ...], Field(max_length=64)] = Field(
        default=(),
        description="What is reached directly: hosts with all below them (`example.com`), addresses and networks "
        "(`10.0.0.0/8`), each with a port or without; `*`: everything. `svc` and `cluster.local` always are.",
    )
    credentials_secret_ref: SecretRef | None = Field(
        default=None, description="USER:PASSWORD for the proxies: one line, as an entry of a Secret beside the pool."
    )
    ca_config_map_ref: ConfigMapRef | None = Field(
        default=None,
        description="Certificate authorities in PEM that are trusted beside the image's, as an entry of a ConfigMap "
        "beside the pool: a company's own, or that of a proxy which looks into TLS.",
    )

    @property
    def is_given(self) -> bool:
        """Whether it changes anything."""
        return bool(self.https_proxy or self.http_proxy or self.ca_config_map_ref)

    @model_validator(mode="after")
    def _proxy_for_credentials(self) -> Self:
        lacking = self.credentials_secret_ref and not (self.https_proxy or self.http_proxy)
        return self._refused([_NO_PROXY] if lacking else [])
