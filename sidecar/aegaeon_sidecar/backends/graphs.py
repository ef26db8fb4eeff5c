"""Passes of a model captured as CUDA graphs, on the device that they run on.

A capture records what is launched to one stream. torch makes that stream, where it is given none, on whichever device
is current at the process's first capture: a pass on another device would run while it is captured, and leave an empty
graph. So streams are made, captured and replayed with the pass's own device as the current one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ref

import torch

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Given a pass over tensors that never move: what does the same to the same tensors, as often as it is called."""


class Cuda(Protocol):
    """The part of torch.cuda in use: the current device, its streams, graphs. Streams and graphs are as torch's."""

    @property
    def Stream(self) -> Callable[[torch.device], Any]:  # noqa: N802  # torch's name
        """A stream of this device."""
        ...

    @property
    def CUDAGraph(self) -> Callable[[], Any]:  # noqa: N802  # torch's name
        """An empty graph, on the current device."""
        ...

    @property
    def device(self) -> Callable[[torch.device], AbstractContextManager[Any]]:
        """A context in which this device is the thread's current one."""
        ...

    @property
    def stream(self) -> Callable[[Any], AbstractContextManager[Any]]:
        """A context in which this stream is its device's current one."""
        ...

    @property
    def current_stream(self) -> Callable[[torch.device], Any]: ...

    @property
    def graph_pool_handle(self) -> Callable[[], Any]:
        """A pool of memory that graphs share which never run at the same time."""
        ...

    @property
    def empty_cache(self) -> Callable[[], None]:
        """Gives memory that torch keeps for later back to the driver; waits for the device."""
        ...


def cuda_graphs(device: torch.device, cuda: Cuda = torch.cuda) -> Capture:
    """Captures passes on `device`, all of which share one pool of memory and so one stream of capture.

    Not by torch.cuda.graph, which waits for the device and empties torch's caches before each capture: the prefills
    after it would wait for the driver to allocate all of it again.
    """
    with cuda.device(device):
        pool, side = cuda.graph_pool_handle(), cuda.Stream(device)
    first: list[Any] = []  # kept: a pool that has lost its last graph cannot be captured into again

    def recorded(run: Callable[[], None]) -> Any:
        graph = cuda.CUDAGraph()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # the lanes' threads map and copy meanwhile
        try:
            run()
        finally:
            graph.capture_end()
        return graph

    def recorded_if_it_fits(run: Callable[[], None]) -> Any | None:
        try:
            return recorded(run)
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
        return None  # here the error is gone, and with it what its frames refer to

    def capture(run: Callable[[], None]) -> Callable[[], None]:
        with cuda.device(device):
            current = cuda.current_stream(device)
            side.wait_stream(current)
            with cuda.stream(side):
                run()  # compiles kernels
                graph = recorded_if_it_fits(run)
                if graph is None:
                    cuda.empty_cache()  # torch itself gives nothing back while it captures
                    graph = recorded(run)
            current.wait_stream(side)
        if not first:
            first.append(graph)

        def replay() -> None:
            with cuda.device(device):
                graph.replay()

        return replay

    return capture


@dataclass(slots=True, weakref_slot=True, eq=False)
class Graph:
    """The graph of one pass. `replay`: None while it is not captured, or after it was dropped; `used`: grows with each
    replay."""

    replay: Callable[[], None] | None = None
    used: int = 0


class Graphs:
    """The graphs of one device: `most` at most, whatever models they are of. Used by the thread that launches passes.

    `wait`: until all that was launched is over. A graph is dropped when it does not run.
    """

    def __init__(self, capture: Capture, most: int, wait: Callable[[], None] = lambda: None) -> None:
        self._capture, self._most, self._wait = capture, most, wait
        self._graphs: list[ref[Graph]] = []  # a model that is forgotten, by any thread, takes its own along
        self._replays = 0

    def replay(self, graph: Graph, captured: Callable[[Capture], Callable[[], None]]) -> None:
        """Launch the pass, which `captured` captures where that is still to be done; where there are `most`, the least
        recently replayed graph makes room."""
        replay = graph.replay or self._captured_by(captured, graph)
        self._replays += 1
        graph.used = self._replays
        replay()

    def clear(self) -> None:
        """Drop all: what they read and write has moved."""
        self._drop(self._kept())

    def _captured_by(self, captured: Callable[[Capture], Callable[[], None]], graph: Graph) -> Callable[[], None]:
        kept = sorted(self._kept(), key=lambda other: other.used)
        surplus = max(0, len(kept) + 1 - self._most)
        self._drop(kept[:surplus])
        graph.replay = replay = captured(self._capture)
        self._graphs = [ref(each) for each in (*kept[surplus:], graph)]
        return replay

    def _kept(self) -> list[Graph]:
        living = (weak() for weak in self._graphs)
        return [graph for graph in living if graph is not None and graph.replay is not None]

    def _drop(self, graphs: list[Graph]) -> None:
        if graphs:
            self._wait()
        for graph in graphs:
            graph.replay = None
