"""What a stranger knows of a stack: addresses, a key of its own, names of models."""

from __future__ import annotations

from dataclasses import dataclass

TOKENS_A_MINUTE, REQUESTS_A_MINUTE = 120.0, 12.0  # of tenants that attack their own quota; without it 400 in seconds


@dataclass(frozen=True, slots=True)
class Target:
    """Every port is of 127.0.0.1."""

    gateway: int
    key: str  # of a tenant of its own, which may use `shared` and the hostile models
    shared: str  # a model that the innocent tenant uses as well
    open: str  # needs no key
    metered_key: str  # of a tenant with TOKENS_A_MINUTE
    paced_key: str  # of a tenant with REQUESTS_A_MINUTE
    neighbour_key: str  # of a tenant that others spy on
    grpc: tuple[int, ...]  # of the scheduler and the gateway's token sink
    pages: tuple[int, ...]  # metrics of scheduler and engines
    picker: int
    folder: str  # of the attacker: files of its models
    web: int  # free, for a server of its own
    hostile: tuple[str, ...] = ()  # names of the models that this attack has added

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway}"
