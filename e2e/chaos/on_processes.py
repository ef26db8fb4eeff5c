"""Faults of processes: `kill -9`, one that is stopped for seconds, a container that runs out of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from e2e.chaos import containers
from e2e.chaos.errors import MissedError
from e2e.chaos.schedule import Drawn
from e2e.chaos.view import Seen
from e2e.chaos.world import World

Inject = Callable[[World, Drawn], AbstractContextManager[str]]
Choose = Callable[[World, Drawn], Seen]


def one_of(component: str) -> Choose:
    return lambda world, drawn: world.pick(component, drawn)


def leader(world: World, drawn: Drawn) -> Seen:
    return world.leader()


def standby(world: World, drawn: Drawn) -> Seen:
    return world.standby()


@contextmanager
def kill(choose: Choose, world: World, drawn: Drawn) -> Iterator[str]:
    """The container's main process; kubelet starts it again."""
    pod = choose(world, drawn)
    main = world.main_process(pod)
    world.end(pod)
    containers.kill(main)
    yield pod.name


@contextmanager
def kill_helper(world: World, drawn: Drawn) -> Iterator[str]:
    """One of the processes in which a gateway parses what untrusted clients send. No request may fail of that."""
    pod = world.pick("gateway", drawn)
    _, *helpers = containers.processes(world.node(pod), pod)
    if not helpers:
        raise MissedError(f"{pod.name} has no worker")
    containers.kill(helpers[int(drawn.how_long * len(helpers))])
    yield pod.name


@contextmanager
def stop(choose: Choose, world: World, drawn: Drawn) -> Iterator[str]:
    """All processes of a container are stopped, as on a node that swaps; nothing is killed."""
    pod = choose(world, drawn)
    with containers.stopped(world.node(pod), pod):
        yield pod.name


@contextmanager
def exhaust(choose: Choose, world: World, drawn: Drawn) -> Iterator[str]:
    """The kernel ends the largest process of a container that has no memory left."""
    pod = choose(world, drawn)
    main = world.main_process(pod)
    world.harm([pod])
    if main in containers.exhaust(world.node(pod), pod):
        world.end(pod)
    yield pod.name
