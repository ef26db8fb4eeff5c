"""Steps of a device that fails or is lost: no sequence gets a token of another one, or one of unknown position."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from aegaeon_proto.engine.catalog import DirectorySource, ModelSpec
from aegaeon_proto.engine.ids import SeqId
from aegaeon_proto.engine.tokens import Token
from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.domain.errors import DeviceLostError
from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.engine.progress import TurnCounts
from aegaeon_sidecar.engine.step import Step
from aegaeon_sidecar.engine.steps import Steps
from aegaeon_sidecar.engine.turn import Turn
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.kv.sequences import Sequence, SequenceTable
from aegaeon_sidecar.kv.writeback_queue import WritebackQueue
from aegaeon_sidecar.sampling import Chosen, Sampled, SamplerState
from aegaeon_sidecar.weights.models import Model

NONE = cast(Any, None)  # where no memory is touched
LOST = DeviceLostError("cuda:0 is lost")
BROKEN = RuntimeError("a kernel was asserted")


@dataclass(frozen=True)
class Scripted:
    """A pass whose results are these tokens, or this error."""

    outcome: list[int] | Exception

    def results(self) -> list[Chosen]:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return [Sampled(token) for token in self.outcome]


@dataclass
class Device:
    """Launches what is in its script, one pass after the other. `followed`: the steps that it was to go on from."""

    script: deque[Launched | Exception] = field(default_factory=deque)
    followed: list[Launched] = field(default_factory=list)

    def launch(self, model: str, inputs: Seq[StepInput], after: Launched | None = None) -> Launched:
        launched = self.script.popleft()
        if isinstance(launched, Exception):
            raise launched
        return launched

    def again(self, model: str, before: Launched) -> Launched | None:
        self.followed.append(before)
        return self.launch(model, [])

    def may_follow(self, samplers: Seq[SamplerState | None]) -> bool:
        return True


class Rig:
    """Two sequences, `a` and `b`, that decode; `delivered`: how many tokens went to gateways."""

    def __init__(self, max_batch: int, *script: Launched | Exception) -> None:
        self.device = Device(deque(script))
        self.delivered = 0
        monitor = Monitor()
        kv = KvMemory(monitor, NONE, NONE, SequenceTable(NONE, NONE, NONE, WritebackQueue(monitor)))
        self.steps = Steps(kv, cast(Any, self.device), self._push, max_batch)
        self.model = Model(ModelSpec("m", DirectorySource("/m")))
        self.both = [decoding(name) for name in "ab"]
        self.a, self.b = self.both
        self.turn = Turn(TurnCounts(1), "m", [], {self.a.key: None, self.b.key: None}, 9, 9)
        kv.sequences.add(self.a)
        kv.sequences.add(self.b)

    def _push(self, target: str, tokens: list[Token]) -> None:
        self.delivered += len(tokens)

    def launch(self, again: bool = False) -> None:
        step = Step(self.turn, self.model, self.both, again=again)
        step.claim()
        self.steps.launch(step)

    def complete(self) -> None:
        self.steps.complete()


def decoding(name: str) -> Sequence:
    return Sequence(SeqId(name, 0), 1, "m", "", 16, [5, 6], [7], SamplerState(), frozenset(), 99, "g", kv_tokens=2)


def test_tokens_of_a_completed_part_are_dropped_when_the_device_is_lost_after_a_failed_one() -> None:
    rig = Rig(1, Scripted(BROKEN), Scripted([41]), LOST)
    rig.launch()
    with pytest.raises(DeviceLostError):
        rig.complete()
    assert (rig.a.output, rig.b.output, rig.delivered) == ([7], [7], 0)
    assert (rig.a.busy, rig.b.busy, rig.model.users) == (0, 0, 0)


def test_a_step_whose_results_are_lost_with_the_device_is_not_retried() -> None:
    rig = Rig(2, Scripted(LOST), Scripted([41]), Scripted([42]))
    rig.launch()
    with pytest.raises(DeviceLostError):
        rig.complete()
    assert len(rig.device.script) == 2
    assert (rig.a.output, rig.b.output, rig.delivered) == ([7], [7], 0)


@pytest.mark.parametrize("follower", [Scripted([51, 52]), Scripted(LOST)])
def test_the_step_in_flight_behind_a_lost_one_delivers_no_token_in_its_place(follower: Scripted) -> None:
    rig = Rig(2, Scripted(LOST), follower)
    rig.launch()
    rig.launch()
    with pytest.raises(DeviceLostError):
        rig.complete()
    rig.steps.drain()  # as a turn does at its end, whatever it ends by
    assert (rig.a.output, rig.b.output, rig.delivered) == ([7], [7], 0)
    assert (rig.a.busy, rig.b.busy, rig.model.users) == (0, 0, 0)


def test_a_part_that_fails_alone_ends_alone_and_the_other_is_reported_once() -> None:
    rig = Rig(1, Scripted(BROKEN), Scripted([41]), Scripted(BROKEN), Scripted([42]))
    rig.launch()
    rig.complete()
    assert (rig.a.closed, rig.b.output, rig.delivered) == (True, [7, 42], 1)


def test_a_step_goes_on_from_the_last_one_and_its_failure_is_seen_to_as_any_other() -> None:
    first, second = Scripted([41, 42]), Scripted([43, 44])
    rig = Rig(2, first, second, BROKEN, Scripted([45]), Scripted([46]))
    for again in (False, True, True):
        rig.launch(again)
        rig.complete()
    assert rig.device.followed == [first, second]
    assert (rig.a.output, rig.b.output) == ([7, 41, 43, 45], [7, 42, 44, 46])


def test_a_step_does_not_go_on_from_one_that_failed() -> None:
    rig = Rig(2, Scripted(BROKEN), Scripted([41]), Scripted([42]), Scripted([43, 44]))
    rig.launch()
    rig.complete()
    rig.launch(again=True)
    rig.complete()
    assert not rig.device.followed
    assert (rig.a.output, rig.b.output) == ([7, 41, 43], [7, 42, 44])
