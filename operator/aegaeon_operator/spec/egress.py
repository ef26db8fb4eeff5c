"""Proxies and certificate authorities for servers outside of the cluster. `kubectl explain` prints the descriptions."""

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
_NO_PROXY = "credentialsSecretRef needs httpsProxy or httpProxy; set one, or remove the credentials"


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
    """Proxies through which pods reach servers outside of the cluster, and certificate authorities they trust."""

    model_config = rules(
        ("!has(self.credentialsSecretRef) || has(self.httpsProxy) || has(self.httpProxy)", _NO_PROXY),
    )

    https_proxy: ProxyUrl | None = Field(
        default=None,
        description="http://HOST:PORT of the proxy for https:// URLs, which it tunnels (CONNECT), and for traces over "
        "TLS. User and password belong in `credentialsSecretRef`.",
    )
    http_proxy: ProxyUrl | None = Field(
        default=None, description="http://HOST:PORT of the proxy for http:// URLs; it tunnels traces without TLS."
    )
    no_proxy: Annotated[tuple[Direct, ...], Field(max_length=64)] = Field(
        default=(),
        description="Destinations reached without a proxy: hosts with their subdomains (`example.com`), addresses and "
        "networks (`10.0.0.0/8`), each with or without a port; `*`: all. `svc` and `cluster.local` always are.",
    )
    credentials_secret_ref: SecretRef | None = Field(
        default=None,
        description="Entry of a Secret in the GpuPool's namespace with USER:PASSWORD for the proxies, on one line.",
    )
    ca_config_map_ref: ConfigMapRef | None = Field(
        default=None,
        description="Entry of a ConfigMap in the GpuPool's namespace with PEM certificate authorities to trust in "
        "addition to the image's: a company's own, or that of a proxy that inspects TLS.",
    )

    @property
    def is_given(self) -> bool:
        """Return whether any of its settings has an effect."""
        return bool(self.https_proxy or self.http_proxy or self.ca_config_map_ref)

    @model_validator(mode="after")
    def _proxy_for_credentials(self) -> Self:
        lacking = self.credentials_secret_ref and not (self.https_proxy or self.http_proxy)
        return self._refused([_NO_PROXY] if lacking else [])
