"""States of ModelPools whose configuration has no room in the pool's Secrets; see operator_states."""

from __future__ import annotations

from collections.abc import Iterator

from operator_objects import Json, gpu_pool, model_pool
from operator_state import CACHED, State

_MOST_OF_A_SECRET = 700_000
POOL = gpu_pool(allowedNamespaces=["*"])


def of_room() -> Iterator[State]:
    """Credentials of a hub, which a tenant may make as long as a Secret."""
    yield of("The configuration of a ModelPool is larger than a Secret", 1_040_000, guarded("red", "a"))
    yield of(
        "A namespace has as much configuration as one may have",
        _MOST_OF_A_SECRET,
        guarded("red", "a", "b"),
        guarded("blue", "c", created=1),
    )
    yield of(
        "The Secrets of a GpuPool are full",
        _MOST_OF_A_SECRET,
        *(guarded(f"team-{one}", f"a{one}", f"b{one}", namespace=f"team-{one}", created=one) for one in range(4)),
        guarded("late", "c", namespace="late", created=4),
    )


def guarded(name: str, *models: str, namespace: str = "infra", created: int = 0) -> Json:
    """A ModelPool whose models have credentials of their own each."""
    found = [
        {"name": model, "source": {"huggingFace": {"repository": "org/m", "credentialsSecretRef": token(model)}}}
        for model in models
    ]
    return model_pool(name, models=found, namespace=namespace, created=created)


def token(model: str) -> Json:
    return {"name": model, "key": "token"}


def of(title: str, size: int, *pools: Json) -> State:
    names = [(pool["metadata"]["namespace"], model["name"]) for pool in pools for model in pool["spec"]["models"]]
    secrets = {place: {"token": "x" * size} for place in names}
    return State(title, (POOL, *pools), models={name: CACHED for _, name in names}, seen={"secrets": secrets})
