"""A device that is always late: what is launched is computed when its results are asked for, and not before.

So memory that is given away, or filled with something else, while a step is under way shows in its tokens. Every step
that may be launched ahead is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace

from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.backends.draws import on_device
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.domain.errors import BackendError
from aegaeon_sidecar.sampling import Chosen, NotFinite, SamplerState


@dataclass
class Late:
    """`chosen`: None before the results were asked for."""

    compute: Callable[[], list[Chosen]]
    chosen: list[Chosen] | None = None

    def results(self) -> list[Chosen]:
        if self.chosen is None:
            self.chosen = self.compute()
        return self.chosen


class LateBackend(TorchBackend):
    """`ahead`: steps that were launched before the tokens that they begin with were known."""

    ahead = 0

    def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
        parts = [replace(part, sampler=copy(part.sampler)) for part in inputs]
        follows = any(part.follows is not None for part in inputs)
        assert not follows or (isinstance(after, Late) and self.may_follow([part.sampler for part in inputs]))
        self.ahead += follows

        def compute() -> list[Chosen]:
            return super(LateBackend, self).launch(model, [known(part, after) for part in parts]).results()

        return Late(compute)

    def may_follow(self, samplers: Sequence[SamplerState | None]) -> bool:
        return all(sampler is None or on_device(sampler) for sampler in samplers)


def known(part: StepInput, after: Launched | None) -> StepInput:
    """The input once the token that it follows is there."""
    if part.follows is None:
        return part
    assert isinstance(after, Late)
    if after.chosen is None:
        raise BackendError("the step before failed, or was not heard before this one")
    before = after.chosen[part.follows]
    assert before is not None
    assert part.sampler is not None
    token = 0 if isinstance(before, NotFinite) else before.token  # as a device goes on: the row is thrown away
    part.sampler.accept(token)
    return replace(part, tokens=[token], follows=None)
