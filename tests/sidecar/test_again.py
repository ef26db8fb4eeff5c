"""Decodes that go on from the step before: an engine lets them only where nothing but the tokens has changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sidecar.programs import run_identically
from sidecar.rig import Rig

from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.sampling import Chosen, Sampled


@dataclass(frozen=True)
class Remembered:
    """A step that is over, and what it was made of."""

    inputs: Sequence[StepInput]
    chosen: list[Chosen]

    def results(self) -> list[Chosen]:
        return self.chosen


class GoingOn(TorchBackend):
    """Makes the step after one of what it remembers of it, so that memory which has moved since shows in the tokens."""

    went_on = 0

    def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
        return Remembered(inputs, super().launch(model, inputs).results())

    def again(self, model: str, before: Launched) -> Launched | None:
        assert isinstance(before, Remembered)
        self.went_on += 1
        return self.launch(model, [_next(part, one) for part, one in zip(before.inputs, before.chosen, strict=True)])


def _next(part: StepInput, chosen: Chosen) -> StepInput:
    assert isinstance(chosen, Sampled)
    return replace(part, tokens=[chosen.token], position=part.position + len(part.tokens))


async def test_any_program_with_steps_that_go_on_gives_the_tokens_of_running_alone(scheduler: Rig) -> None:
    pair = GoingOn(), GoingOn()
    await run_identically(scheduler, scheduler.models, 301, *pair)
    assert sum(backend.went_on for backend in pair) > 50
