"""States of ModelPools whose tenants lack something; see operator_states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from operator_objects import Json, model_pool
from operator_state import SERVED, State


def of_tenants(gpu_pool: Json) -> Iterator[State]:
    """What is wrong with tenants."""
    keys = {
        ("infra", "acme"): {"keys": "sk-1-0123456789abcdef"},
        ("infra", "umbrella"): {"keys": "sk-2-0123456789abcdef"},
    }
    acme = (gpu_pool, model_pool("red", "llama", tenants=[tenant("acme")]))
    yield State("A tenant has a key that can be guessed", acme, seen={"secrets": {("infra", "acme"): {"keys": "sk-1"}}})
    yield State("The Secret of a tenant is missing", acme)
    refusing = {("infra", "acme"): "Internal error occurred: unable to transform key"}
    yield State("The Secret of a tenant cannot be read, and was never read", acme, seen={"unreadable": refusing})
    yield State(
        "The Secret of a tenant cannot be read any more",
        acme,
        seen={"secrets": {("infra", "acme"): {"keys": "sk-acme-0123456789abcdef"}}, "unreadable": refusing},
    )
    yield State(
        "The Secret of a tenant has no key",
        acme,
        seen={"secrets": {("infra", "acme"): {"keys": " "}}},
    )
    yield State(
        "Keys of a tenant are a file",
        (gpu_pool, model_pool("red", "llama", tenants=[{"name": "acme", "keyFile": "/keys"}])),
    )
    yield State(
        "Two tenants have one key",
        (gpu_pool, model_pool("red", "llama", tenants=[tenant("acme"), tenant("umbrella")])),
        seen={"secrets": {key: {"keys": "sk-1-0123456789abcdef"} for key in keys}},
    )
    yield State(
        "A grant names a model that is not there",
        (gpu_pool, model_pool("red", "llama", tenants=[tenant("acme", models=["lama"])])),
        seen={"secrets": keys},
    )
    quota = {"quota": {"requestsPerMinute": 60}}
    twice = (
        model_pool("red", "llama", tenants=[tenant("acme", **quota)]),
        model_pool("blue", "qwen", created=1, tenants=[tenant("acme")]),
    )
    yield State(
        "A tenant is another one in an older ModelPool",
        (gpu_pool, *twice),
        models={"llama": SERVED, "qwen": SERVED},
        seen={"secrets": keys},
    )
    several = [tenant("acme", models=["lama"]), tenant("umbrella", models=["quen", "llama"])]
    yield State(
        "Several things are wrong", (gpu_pool, model_pool("red", "llama", tenants=several)), seen={"secrets": {}}
    )


def tenant(name: str, **about: Any) -> Json:
    """A tenant with a Secret of its own."""
    return {"name": name, "keySecretRef": {"name": name, "key": "keys"}, **about}
