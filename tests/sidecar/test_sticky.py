"""A sticky error of the device ends the process; any other fails what it belongs to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from sidecar.driver_double import DriverDouble
from sidecar.rig import Rig, config, inside, seq, spec
from torch import Tensor

from aegaeon_native import CopyLane, NativeError, Range, SlabPool
from aegaeon_proto.engine.commands import Unload
from aegaeon_proto.engine.ids import InstanceId
from aegaeon_proto.engine.reports import Memory, Report
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.device import drained_on_error
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.domain.errors import DeviceLostError, EngineError, UnreadableError
from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.domain.program import Lane, Program
from aegaeon_sidecar.domain.sticky import end_if_sticky, loss_in
from aegaeon_sidecar.engine.lanes import Lanes
from aegaeon_sidecar.engine.outcome import Outcome
from aegaeon_sidecar.engine.state import Queued, State
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.memory.outside import Outside
from aegaeon_sidecar.weights.table import ModelTable


class OfAccelerator(torch.AcceleratorError):
    """As torch raises it: with the runtime's number."""

    error_code = 719


STICKY = [
    NativeError("cuMemcpyAsync: an illegal memory access was encountered (CUDA error 700)"),
    NativeError("cuStreamSynchronize: unknown error (CUDA error 214)"),
    NativeError("cuMemMap: CUDA-capable device(s) is/are busy or unavailable (CUDA error 46)"),
    NativeError("cuEventSynchronize: tensor memory not completely freed (CUDA error 721)"),
    torch.AcceleratorError("CUDA error: unknown error"),
    OfAccelerator("CUDA error: whatever it says"),
    torch.AcceleratorError("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA"),
    RuntimeError("Triton Error [CUDA]: misaligned address"),
]
PASSING = [
    NativeError("cuMemCreate: out of memory (CUDA error 2)"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    torch.AcceleratorError("CUDA error: invalid configuration argument"),
    ValueError("misaligned address"),
    NativeError("pread: Input/output error"),
]


@pytest.mark.parametrize("error", STICKY, ids=str)
def test_a_sticky_error_is_known_by_its_number_or_its_text_and_behind_others(error: Exception) -> None:
    with pytest.raises(DeviceLostError, match="the device is lost: "):
        end_if_sticky(error)
    behind, outer = UnreadableError("a file"), EngineError("a model")
    behind.__cause__, outer.__cause__ = error, behind
    with pytest.raises(DeviceLostError):
        end_if_sticky(outer)


def test_what_a_lost_device_said_is_read_from_whatever_was_raised_from_it() -> None:
    with pytest.raises(DeviceLostError) as caught:
        end_if_sticky(STICKY[0])
    assert loss_in(caught.value) == str(STICKY[0])
    outer = NativeError("cuda:0 has room for 0 of 4 slabs")
    outer.__cause__ = STICKY[1]
    assert loss_in(outer) == str(STICKY[1])
    assert loss_in(DeviceLostError("cuda:0 is lost: no answer")) == "cuda:0 is lost: no answer"
    assert [loss_in(error) for error in PASSING] == [""] * len(PASSING)


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_errors_of_one_command_are_not_sticky(error: Exception) -> None:
    end_if_sticky(error)
    with pytest.raises(type(error)), drained_on_error((torch.device("cpu"),)):
        raise error


LOAD = 2  # the number of the command after the catalog


class Quiet(State):
    """Without memory to report."""

    def memory(self) -> Memory:
        return Memory(0, 0)


def ran_by_lanes(handler: Callable[[Queued], Outcome]) -> tuple[int, int]:
    """How often lanes crashed, and reported something, of one command that the handler carries out."""
    monitor, over = Monitor(), threading.Event()
    crashed, reported = [], []
    state = Quiet(monitor, cast(KvMemory, None), ModelTable(monitor), Outside(0), Program(InstanceId("e")))

    def end(_: Queued, report: Report) -> None:
        reported.append(report)
        over.set()

    def die(_: BaseException) -> None:
        crashed.append(True)
        over.set()

    lanes = Lanes(state, handler, end, die, lambda: None)
    state.program.issue(Queued(1, Lane.WEIGHTS, (), Unload("m"), 0))
    lanes.start()
    assert over.wait(20)
    with monitor.changed:
        monitor.stopping = True
        monitor.notify_lanes(state.program)
    assert lanes.join(20)
    return len(crashed), len(reported)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("error", "lost"), [(STICKY[0], True), (PASSING[0], False)])
def test_a_copy_that_finds_the_device_lost_ends_the_process_and_another_failure_is_reported(
    error: Exception, lost: bool
) -> None:
    def fails(command: Queued) -> Outcome:
        raise error

    assert ran_by_lanes(fails) == ((1, 0) if lost else (0, 1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_other_lanes_begin_nothing_on_a_device_that_one_has_lost() -> None:
    monitor, over, carried_out = Monitor(), threading.Event(), list[int]()
    state = Quiet(monitor, cast(KvMemory, None), ModelTable(monitor), Outside(0), Program(InstanceId("e")))

    def handle(command: Queued) -> Outcome:
        carried_out.append(command.id)
        raise STICKY[0]

    lanes = Lanes(state, handle, lambda *_: None, lambda _: over.set(), lambda: None)
    state.program.issue(Queued(1, Lane.KV_OUT, (), Unload("m"), 0))
    lanes.start()
    assert over.wait(20)
    with monitor.changed:
        state.program.issue(Queued(2, Lane.WEIGHTS, (), Unload("m"), 0))
        monitor.notify_lanes(state.program)
    next(thread for thread in lanes._threads if thread.name == Lane.WEIGHTS.value).join(20)
    assert carried_out == [1]
    with monitor.changed:
        monitor.stopping = True
        monitor.notify_lanes(state.program)
    assert lanes.join(20)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_copy_that_the_gpu_cannot_make_ends_the_process_since_every_later_one_would_fail(
    driver: DriverDouble,
) -> None:
    """On the double. With its error reported as Failed (lanes without end_if_sticky) the engine stays in the pool."""
    pool, place = SlabPool.cuda(driver.gpu, 2 << 20, 1), np.zeros(4096, dtype=np.uint8)
    unmapped, lane = Range(pool, 1), CopyLane("weights", device=driver.gpu)
    said: list[str] = []

    def copies(command: Queued) -> Outcome:
        for _ in range(2):
            try:
                lane.copy(unmapped.address, place.ctypes.data, place.nbytes)
                while not lane.synchronize(1.0):
                    pass
            except NativeError as error:
                said.append(str(error))
        raise NativeError(said[-1])

    assert ran_by_lanes(copies) == (1, 0)
    assert all("CUDA error 700" in text for text in said)
    assert len(said) == 2
    with pytest.raises(NativeError, match="CUDA error 700"):
        CopyLane("another", device=driver.gpu)
    lane.close()
    pool.close()


class Broken(TorchBackend):
    """Its device is lost at the first step."""

    def _forward(self, model: str, inputs: Sequence[StepInput], wanted: Sequence[int] | None) -> Tensor:
        raise STICKY[3]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_step_that_finds_the_device_lost_is_not_tried_again(scheduler: Rig) -> None:
    """The lane ends, and with it the process; no sequence is failed for it."""
    outcomes: list[set[int]] = []
    with pytest.raises(AssertionError):  # of the rig: no lane may die
        await step_of_broken(scheduler, scheduler.models["llama"], outcomes)
    assert outcomes == [{LOAD}]


async def step_of_broken(scheduler: Rig, model: Path, outcomes: list[set[int]]) -> None:
    async with inside(config(scheduler.folder), Broken()):
        link = await scheduler.cached([spec("m", model)])
        load = link.send(pb.Load(model="m", slabs=32))
        assert load == LOAD
        link.send(scheduler.open("r", "m", [5, 6, 7], max_tokens=4))
        link.send(pb.Turn(model="m", prefill=[pb.PrefillPart(seq=seq("r"), tokens=8)], slabs=8), after=[load])
        await link.done(load)
        await link.until(lambda: Lane.COMPUTE.value not in {thread.name for thread in threading.enumerate()})
        outcomes.append(set(link.outcomes))
