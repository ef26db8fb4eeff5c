"""Faults of tenants: ModelPools that change under load, well and badly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from openai import OpenAIError

from aegaeon_cli.demo import clients
from e2e.chaos.schedule import Drawn
from e2e.chaos.world import World
from e2e.manifests import RED, model_pool

# What a scheduler and two engines take for a change on a machine that is busy with other recoveries, and more.
_CHANGE_S = 180.0
BLUE_MODEL = "mistral"


def red(*more: dict[str, Any], **qwen2: Any) -> dict[str, Any]:
    """Tenant red's models; fields of qwen2 may be others."""
    made = model_pool("red", ["llama", "qwen2"])
    made["spec"]["models"][1] |= qwen2
    made["spec"]["models"] += more
    return made


def blue(source: dict[str, Any]) -> dict[str, Any]:
    """Tenant blue's model, which comes from a web server."""
    made = model_pool("blue", [BLUE_MODEL])
    made["spec"]["models"][0]["source"] = source
    return made


@contextmanager
def shorten(world: World, drawn: Drawn) -> Iterator[str]:
    """Another setting of a model that is served."""
    try:
        world.apply(red(maxModelLen=128))
        await_rollout(world, "red")
        yield "qwen2"
    finally:
        world.apply(red())
    await_rollout(world, "red")


@contextmanager
def exchange(world: World, drawn: Drawn) -> Iterator[str]:
    """A name gets other weights, and its own again. An answer is of the ones or of the others, never of both."""
    change = world.verdict.may_be("qwen2", "qwen3", time.monotonic())
    try:
        world.apply(red(source={"hostPath": "qwen3"}))
        await_rollout(world, "red")
        yield "qwen2"
    finally:
        world.apply(red())
    await_rollout(world, "red")
    change.until = time.monotonic()


@contextmanager
def add(world: World, drawn: Drawn) -> Iterator[str]:
    """A model comes and goes."""
    with with_qwen3(world, {"hostPath": "qwen3"}):
        served(world, "qwen3")
        yield "qwen3"


@contextmanager
def refuse(world: World, drawn: Drawn) -> Iterator[str]:
    """A change that cannot be served stands at its own ModelPool, and what was served goes on."""
    was = world.web.source("first", BLUE_MODEL)
    try:
        world.apply(blue({"hostPath": "nowhere"}))
        world.until("the change is refused", lambda: _accepted(world, "blue") == "False", _CHANGE_S)
        yield BLUE_MODEL
    finally:
        world.apply(blue(was))
    await_rollout(world, "blue")


@contextmanager
def with_qwen3(world: World, source: dict[str, Any]) -> Iterator[None]:
    """Tenant red has one model more."""
    try:
        world.apply(red({"name": "qwen3", "source": source}))
        yield
    finally:
        world.apply(red())
    await_rollout(world, "red")


def await_rollout(world: World, name: str) -> None:
    """Until nothing of a ModelPool is on its way. Raises ChaosError."""
    world.until(f"ModelPool {name} is rolled out", lambda: _progressing(world, name) == "False", _CHANGE_S)


def served(world: World, model: str) -> None:
    """Until each gateway answers a request for the model of tenant red. Raises ChaosError."""
    for url in world.gateways.urls:
        world.until(f"{model} is served at {url}", partial(_answers, url, model), _CHANGE_S)


def _answers(url: str, model: str) -> bool:
    try:
        with clients.client(url, RED, timeout=60) as client:
            client.completions.create(model=model, prompt="Hello", max_tokens=1)
    except OpenAIError:
        return False
    return True


def _progressing(world: World, name: str) -> str:
    return str(world.view.condition("modelpools", name, "Progressing").get("status", ""))


def _accepted(world: World, name: str) -> str:
    return str(world.view.condition("modelpools", name, "Accepted").get("status", ""))
