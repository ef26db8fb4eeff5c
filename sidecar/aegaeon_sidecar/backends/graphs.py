"""Passes of a model captured as CUDA graphs, on the device that they run on.

A capture records what is launched to one stream. torch makes that stream, where it is given none, on whichever device
is current at the process's first capture: a pass on another device would run while it is captured, and leave an empty
graph. So streams are made, captured and replayed with the pass's own device as the current one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Given a pass over tensors that never move: what does the same to the same tensors, as often as it is called."""


class Cuda(Protocol):
    """What is asked of torch.cuda: the current device, its streams, graphs. Streams and graphs are as torch's."""

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
        """While it is entered, this device is the thread's current one."""
        ...

    @property
    def stream(self) -> Callable[[Any], AbstractContextManager[Any]]:
        """While it is entered, this stream is its device's current one."""
        ...

    @property
    def graph(self) -> Callable[..., AbstractContextManager[Any]]:
        """While it is entered, what is launched to the stream goes into the graph, and is not run."""
        ...

    @property
    def current_stream(self) -> Callable[[torch.device], Any]: ...

    @property
    def graph_pool_handle(self) -> Callable[[], Any]:
        """A pool of memory that graphs share which never run at the same time."""
        ...


def cuda_graphs(device: torch.device, cuda: Cuda = torch.cuda) -> Capture:
    """Captures passes on `device`, all of which share one pool of memory and so one stream of capture."""
    with cuda.device(device):
        pool, side = cuda.graph_pool_handle(), cuda.Stream(device)

    def capture(run: Callable[[], None]) -> Callable[[], None]:
        with cuda.device(device):
            current = cuda.current_stream(device)
            side.wait_stream(current)
            with cuda.stream(side):
                run()  # compiles kernels
            graph = cuda.CUDAGraph()
            # the lanes' threads map and copy meanwhile
            with cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                run()
            current.wait_stream(side)

        def replay() -> None:
            with cuda.device(device):
                graph.replay()

        return replay

    return capture
