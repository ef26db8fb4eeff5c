"""Passes are captured on the device that they run on, whichever is current: a double of two devices records and runs
launches as the driver does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast
from weakref import ref

import pytest
import torch

from aegaeon_sidecar.backends.graphs import Capture, Cuda, Graphs, cuda_graphs
from aegaeon_sidecar.backends.graphs import Graph as Kept

Launch = Callable[[], None]


class Stream:
    def __init__(self, device: int) -> None:
        self.device = device
        self.graph: Graph | None = None
        self.waited: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        assert self.device == other.device
        self.waited.append(other)


class OutOfMemoryError(RuntimeError):
    """As torch.OutOfMemoryError, which only its C++ half makes."""


class Graph:
    """What was launched to its stream while it was captured. `device`: of that stream."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.launches: list[Launch] = []
        self.device: int | None = None

    def capture_begin(self, pool: tuple[int, int], capture_error_mode: str) -> None:
        """Of the current stream. As torch's allocator has it, a pool is dead once its last graph is."""
        assert capture_error_mode == "thread_local"
        stream = self.driver.streams[self.driver.current]
        assert pool[0] == stream.device
        graphs = self.driver.pools.setdefault(pool, [])
        assert not graphs or any(graph() is not None for graph in graphs), "use_count > 0 INTERNAL ASSERT FAILED"
        graphs.append(ref(self))
        self.device, stream.graph, self.stream = stream.device, self, stream

    def capture_end(self) -> None:
        self.stream.graph = None

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
        self.pools: dict[tuple[int, int], list[ref[Graph]]] = {}
        self.emptied = 0

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

    def empty_cache(self) -> None:
        self.emptied += 1

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
        self.empty_cache()
        if stream is None:
            self.default = stream = self.default or self.Stream()
        with self.stream(stream):
            graph.capture_begin(pool, **modes)
            yield
            graph.capture_end()


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


def test_a_capture_leaves_memory_that_torch_keeps_and_gives_it_back_only_where_it_does_not_fit() -> None:
    driver, lacking = Driver(), 0
    capture = cuda_graphs(torch.device("cuda", 0), cast(Cuda, driver))

    def run() -> None:
        assert not any(weak() for weak in activations), "what a failed capture allocated is still there"
        activation = Stream(0)
        activations.append(ref(activation))
        if driver.streams[0].graph is not None and driver.emptied < lacking:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB.")
        driver.launch(0, partial(done.append, 1))

    done: list[int] = []
    activations: list[ref[Stream]] = []
    capture(run)
    assert driver.emptied == 0
    lacking = 1
    replay = capture(run)
    done.clear()
    replay()
    assert (driver.emptied, done) == (1, [1])
    lacking = 3
    with pytest.raises(OutOfMemoryError):
        capture(run)
    assert driver.emptied == 2
    assert driver.streams[0].graph is None


def test_what_fails_for_other_reasons_is_not_captured_again() -> None:
    driver, passes = Driver(), []

    def run() -> None:
        passes.append(driver.streams[0].graph is not None)
        if passes[-1]:
            raise RuntimeError("it cannot be captured")

    with pytest.raises(RuntimeError, match="cannot be captured"):
        cuda_graphs(torch.device("cuda", 0), cast(Cuda, driver))(run)
    assert passes == [False, True]
    assert driver.emptied == 0


class Bounded:
    """Passes by name over the graphs of a driver; `seen`: what became of them, in order."""

    def __init__(self, most: int) -> None:
        self.driver, self.seen = Driver(), list[str]()
        self.capture = cuda_graphs(torch.device("cuda", 0), cast(Cuda, self.driver))
        self.graphs = Graphs(self.capture, most, lambda: self.seen.append("waited"))
        self.kept: dict[str, Kept] = {}

    def run(self, names: str) -> list[str]:
        for name in names:
            self.graphs.replay(self.kept.setdefault(name, Kept()), partial(self._captured, name))
        seen = list(self.seen)
        self.seen.clear()
        return seen

    def _captured(self, name: str, capture: Capture) -> Callable[[], None]:
        replay = capture(partial(self.driver.launch, 0, partial(self.seen.append, name)))
        self.seen[-1] = f"captured {name}"
        return replay

    @property
    def captured(self) -> set[str]:
        return {name for name, graph in self.kept.items() if graph.replay is not None}


def test_the_least_recently_replayed_graph_makes_room_once_nothing_runs() -> None:
    bounded = Bounded(2)
    assert bounded.run("abab") == ["captured a", "a", "captured b", "b", "a", "b"]
    assert bounded.run("ac") == ["a", "waited", "captured c", "c"]
    assert bounded.captured == {"a", "c"}
    assert bounded.run("ba") == ["waited", "captured b", "b", "waited", "captured a", "a"]
    assert bounded.captured == {"a", "b"}


def test_graphs_of_a_forgotten_model_are_not_counted_and_its_pool_lives_on() -> None:
    bounded = Bounded(2)
    bounded.run("ab")
    bounded.kept.clear()
    assert bounded.run("cd") == ["captured c", "c", "captured d", "d"]


def test_all_are_captured_anew_where_what_they_read_has_moved() -> None:
    bounded = Bounded(2)
    bounded.run("ab")
    bounded.graphs.clear()
    assert bounded.captured == set()
    assert bounded.run("ba") == ["waited", "captured b", "b", "captured a", "a"]
