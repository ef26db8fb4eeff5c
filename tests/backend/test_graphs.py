"""Passes are captured on the device that they run on, whichever is current: a double of two devices records and runs
launches as the driver does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import pytest
import torch

from aegaeon_sidecar.backends.graphs import Cuda, cuda_graphs

Launch = Callable[[], None]


class Stream:
    def __init__(self, device: int) -> None:
        self.device = device
        self.graph: Graph | None = None
        self.waited: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        assert self.device == other.device
        self.waited.append(other)


class Graph:
    """What was launched to its stream while it was captured. `device`: of that stream."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.launches: list[Launch] = []
        self.device: int | None = None

    def replay(self) -> None:
        assert self.driver.current == self.device, "a graph is launched to a stream of the current device"
        for launch in self.launches:
            launch()


class Driver:
    """Two devices as torch.cuda shows them: what is launched goes to the current stream of the device of its tensors,
    runs at once where that stream is not captured, and else not at all."""

    def __init__(self) -> None:
        self.current = 0
        self.default: Stream | None = None
        self.streams = [Stream(0), Stream(1)]

    def launch(self, device: int, run: Launch) -> None:
        graph = self.streams[device].graph
        if graph is None:
            run()
        else:
            graph.launches.append(run)

    def Stream(self, device: torch.device | None = None) -> Stream:  # noqa: N802  # torch's name
        return Stream(self.current if device is None else device.index)

    def CUDAGraph(self) -> Graph:  # noqa: N802  # torch's name
        return Graph(self)

    def current_stream(self, device: torch.device) -> Stream:
        return self.streams[device.index]

    def graph_pool_handle(self) -> tuple[int, int]:
        return (self.current, 0)

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        yield
        self.current = before

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.streams[stream.device] = self.streams[stream.device], stream
        entered, self.current = self.current, stream.device
        yield
        self.streams[stream.device], self.current = before, entered

    @contextmanager
    def graph(self, graph: Graph, pool: Any, stream: Stream | None = None, **modes: str) -> Iterator[None]:
        assert modes == {"capture_error_mode": "thread_local"}
        if stream is None:
            self.default = stream = self.default or self.Stream()
        assert pool[0] == stream.device
        with self.stream(stream):
            graph.device, stream.graph = stream.device, graph
            yield
            stream.graph = None


@pytest.mark.parametrize("order", [(0,), (1,), (0, 1), (1, 0)])
def test_a_graph_does_what_its_pass_does_on_every_device(order: tuple[int, ...]) -> None:
    """Also where an engine of another device captured first."""
    driver, done = Driver(), []
    replays = []
    for index in order:
        capture = cuda_graphs(torch.device("cuda", index), cast(Cuda, driver))
        for size in ("small", "large"):
            run = partial(driver.launch, index, partial(done.append, (index, size)))
            replays.append(capture(run))
    passes = [(index, size) for index in order for size in ("small", "large")]
    assert done == passes  # once each, to compile kernels; a capture runs nothing
    for replay in (*replays, replays[0]):
        replay()
    assert done == [*passes, *passes, passes[0]]
    assert driver.current == 0


def test_a_graph_is_captured_behind_what_was_launched_before_and_in_front_of_what_comes_then() -> None:
    driver, streams = Driver(), []
    outer = driver.streams[1]
    cuda_graphs(torch.device("cuda", 1), cast(Cuda, driver))(lambda: streams.append(driver.streams[1]))
    side = streams[0]
    assert streams == [side, side]
    assert side is not outer
    assert (side.waited, outer.waited) == ([outer], [side])


def test_where_torch_chooses_the_stream_a_graph_of_the_second_device_stays_empty() -> None:
    """What the capture must not do: the double shows it as torch does."""
    driver, done = Driver(), []
    graph = driver.CUDAGraph()
    with driver.graph(graph, (0, 0), capture_error_mode="thread_local"):
        driver.launch(1, lambda: done.append(1))
    graph.replay()
    assert (graph.launches, done) == ([], [1])
