"""What decodes of many models share on one device: buffers as large as the largest needs, and a number of graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.model_memory import BESIDE_GRAPHS_MIB, kept

from aegaeon_proto.engine.sampling import SamplingParams
from aegaeon_sidecar.backends import MAX_GRAPHS, StepInput
from aegaeon_sidecar.backends.passes import Buffers
from aegaeon_sidecar.domain.errors import BackendError
from aegaeon_sidecar.sampling import SamplerState


class Captures:
    """A double of captures, whose graphs do the pass, and refuse where the device has other `buffers` by then: a
    graph finds those that it was captured with. `seen`: captures so far; `kept`: graphs that are there."""

    def __init__(self, buffers: Callable[[], Buffers]) -> None:
        self.buffers = buffers
        self.seen = self.kept = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        return _Replay(self, run)


class _Replay:
    def __init__(self, captures: Captures, run: Callable[[], None]) -> None:
        self._captures, self._run, self._buffers = captures, run, captures.buffers()
        captures.seen += 1
        captures.kept += 1

    def __call__(self) -> None:
        assert self._captures.buffers() is self._buffers, "the graph reads buffers that were replaced"
        self._run()

    def __del__(self) -> None:
        self._captures.kept -= 1


def test_sixty_models_that_ran_leave_the_buffers_of_one_and_graphs_as_many_as_are_allowed() -> None:
    sixty = kept(60, most=64, shapes=((1, 100), (17, 3000)))
    assert (sixty.captured, sixty.graphs) == (120, 64)
    assert sixty.nbytes <= BESIDE_GRAPHS_MIB << 20


Outputs = dict[str, list[int]]


class Company:
    """Models "0", "1", ... of one KV shape in one backend, whose decodes are launched ahead and in turn."""

    def __init__(self, rig: Any, directories: Sequence[Path], most: int = MAX_GRAPHS) -> None:
        self.captures = Captures(lambda: self.backend._passes.buffers)
        self.tiny = rig(directories[0], paged=True, max_graphs=most)
        self.backend = self.tiny.backend
        self.backend._capture = lambda: self.captures
        self._weights: list[Any] = []
        for directory in directories:
            self.add(rig(directory, kv_blocks=1))

    def add(self, other: Any) -> None:
        assert other.layout.kv_shape == self.tiny.layout.kv_shape
        self.backend.register(str(len(self._weights)), other.directory, other.layout, other.weights)
        self._weights.append(other.weights)

    def decode(self, names: str, prompt: list[int], steps: int = 2) -> Outputs:
        """Tokens of two sequences of each model. Results of a step are read when the next of all are launched."""
        samplers = {name: [SamplerState(), SamplerState(SamplingParams(temperature=1.0, seed=3))] for name in names}
        tables = {name: [self.tiny.table(32) for _ in samplers[name]] for name in names}
        for name in names:
            for table in tables[name]:
                self.backend.logits(name, [StepInput(prompt[:9], 0, table, None)])
        before: dict[str, Any] = {}
        outputs: Outputs = {name: [] for name in names}
        for step in range(steps + 1):
            launched = {}
            for name in names if step < steps else "":
                parts = [
                    StepInput((), 9 + step, table, sampler, follows=row)
                    if name in before
                    else StepInput([prompt[9]], 9, table, sampler)
                    for row, (table, sampler) in enumerate(zip(tables[name], samplers[name], strict=True))
                ]
                launched[name] = self.backend.launch(name, parts, before.get(name))
            for name, done in before.items():
                for sampler, sampled in zip(samplers[name], done.results(), strict=True):
                    sampler.accept(sampled.token)
                    outputs[name].append(sampled.token)
            before = launched
        return outputs


@pytest.fixture
def pair(make_model: Callable[..., Path]) -> list[Path]:
    """The second has the larger vocabulary."""
    return [make_model("llama", seed=size, vocab_size=size, num_hidden_layers=1) for size in (384, 500)]


@pytest.mark.usefixtures("few_rows")
def test_steps_of_models_under_way_at_once_give_the_tokens_of_each_alone(
    rig: Any, pair: list[Path], prompt: list[int]
) -> None:
    """Also where each graph makes room for the other's, and is captured anew when it is needed."""
    alone = [Company(rig, [directory]).decode("0", prompt)["0"] for directory in pair]
    for most, captured in ((MAX_GRAPHS, 2), (1, 4)):
        company = Company(rig, pair, most)
        assert list(company.decode("01", prompt).values()) == alone
        assert (company.captures.seen, company.captures.kept) == (captured, min(most, 2))


@pytest.mark.usefixtures("few_rows")
def test_a_model_that_comes_later_and_is_larger_leaves_no_graph_that_reads_the_buffers_of_before(
    rig: Any, pair: list[Path], prompt: list[int]
) -> None:
    company = Company(rig, pair[:1])
    alone = company.decode("0", prompt)
    company.add(rig(pair[1], kv_blocks=1))
    assert company.decode("10", prompt)["0"] == alone["0"]
    assert (company.captures.seen, company.captures.kept) == (3, 2)


@pytest.mark.usefixtures("few_rows")
def test_an_input_never_follows_a_token_of_another_model(rig: Any, pair: list[Path]) -> None:
    """Its id may be outside of the vocabulary, and an assertion on the device ends its context."""
    company = Company(rig, pair[:1])
    table = company.tiny.table(16)
    first = company.backend.launch("0", [StepInput([7], 0, table, SamplerState())])
    with pytest.raises(BackendError, match="follows row 1 of a step of 1"):
        company.backend.launch("0", [StepInput((), 1, table, SamplerState(), follows=1)], first)
