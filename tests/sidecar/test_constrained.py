"""Constrained sequences in an engine: in company, launched ahead, moved, resumed elsewhere, and refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sidecar.rig import Counted, Link, Rig, config, inside, rig, seq, spec
from tokenizers import Tokenizer

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends.torch import TorchBackend

pytestmark = pytest.mark.usefixtures("few_rows")

EOS, LENGTH = 2, 9
PROMPTS = {"greedy": [5, 17, 23, 42, 8], "drawn": [99, 140, 7], "free": [61, 12, 33, 4], "drawn free": [7, 8, 9]}
REGEX = mpb.Constraint(kind=mpb.CONSTRAINT_KIND_REGEX, text="[0-9]{2,4}-[a-f]*", end_ids=[EOS])
CONSTRAINTS = {"greedy": REGEX, "drawn": REGEX}


@pytest.fixture
def model(tiny_models: dict[str, Path]) -> Path:
    return tiny_models["llama"]


async def ready(scheduler: Rig, model: Path, instance: str = "a") -> tuple[Link, int]:
    """The link to an engine that has the model, and the id of its Load."""
    link = await scheduler.cached([spec("m", model)], instance)
    return link, link.send(pb.Load(model="m", slabs=32))


def opened(scheduler: Rig, name: str, **fields: Any) -> pb.Open:
    sampling = mpb.Sampling(top_p=1, repetition_penalty=1, temperature=0.9 * ("drawn" in name), seed=3)
    if (constraint := fields.pop("constraint", CONSTRAINTS.get(name))) is not None:
        sampling.constraint.CopyFrom(constraint)
    if (logprobs := fields.pop("logprobs", None)) is not None:
        sampling.logprobs = logprobs
    return scheduler.open(
        name, "m", PROMPTS[name], max_tokens=LENGTH, sampling=sampling, stop_ids=[EOS] if constraint else [], **fields
    )


def turn(names: Sequence[str], steps: int = 99) -> pb.Turn:
    keys = [seq(name) for name in names]
    return pb.Turn(
        model="m", prefill=[pb.PrefillPart(seq=key, tokens=99) for key in keys], decode=keys, steps=steps, slabs=8
    )


async def outputs(
    scheduler: Rig, model: Path, backend: TorchBackend, *turns: Sequence[str], **fields: Any
) -> dict[str, list[int]]:
    """All of each turn together, one turn after the other on one engine."""
    async with inside(config(scheduler.folder), backend) as engine:
        link, load = await ready(scheduler, model)
        for names in turns:
            for name in names:
                link.send(opened(scheduler, name, **fields))
            await link.done(link.send(turn(names), after=[load]))
        engine.check()
        return {name: await whole(scheduler, name) for names in turns for name in names}


async def whole(scheduler: Rig, name: str) -> list[int]:
    """The output once its last token is there."""
    await scheduler.until(lambda: any(token.finish for token in scheduler.tokens.get((name, 0), {}).values()))
    return scheduler.output(name)


def text_of(model: Path, tokens: list[int]) -> str:
    return str(Tokenizer.from_file(str(model / "tokenizer.json")).decode(tokens))


@pytest.mark.parametrize("logprobs", [None, 2])
async def test_a_batch_mixes_rows_with_and_without_constraint_and_steps_ahead(
    folder: Path, model: Path, logprobs: int | None
) -> None:
    """Every sequence gets the tokens that it gets alone, whether steps wait for tokens or not."""
    seen = []
    for backend in (TorchBackend(), Counted(paged=True)):
        async with rig(folder) as scheduler:
            seen.append(await outputs(scheduler, model, backend, list(PROMPTS), logprobs=logprobs))
    assert isinstance(backend, Counted)
    assert (sum(backend.ahead) > 2 * LENGTH) == (logprobs is None)
    assert seen[0] == seen[1]
    async with rig(folder) as scheduler:
        alone = await outputs(scheduler, model, TorchBackend(), *([name] for name in PROMPTS), logprobs=logprobs)
    assert alone == seen[0]


async def test_an_output_is_what_its_constraint_says(folder: Path, model: Path) -> None:
    constraint = mpb.Constraint(kind=mpb.CONSTRAINT_KIND_REGEX, text="(yes|no){2}", end_ids=[EOS])
    async with rig(folder) as scheduler:
        seen = await outputs(scheduler, model, TorchBackend(), ["greedy", "drawn"], constraint=constraint)
        for name, tokens in seen.items():
            assert text_of(model, tokens) in ("yesyes", "yesno", "noyes", "nono")
            assert scheduler.tokens[name, 0][len(tokens) - 1].finish == mpb.FINISH_REASON_STOP


async def test_a_constrained_sequence_moves_between_engines(folder: Path, model: Path) -> None:
    """Prefill here, swap out, adopt there; the matcher there is made of the output."""
    async with rig(folder) as scheduler:
        seen = await outputs(scheduler, model, TorchBackend(), ["drawn"])
    async with (
        rig(folder) as scheduler,
        inside(config(folder, "a")),
        inside(config(folder, "b"), Counted(paged=True)) as there,
    ):
        (one, load), (other, load_there) = await ready(scheduler, model, "a"), await ready(scheduler, model, "b")
        one.send(opened(scheduler, "drawn"))
        await one.done(one.send(turn(["drawn"], steps=2), after=[load]))
        handle = (await one.done(one.send(pb.SwapOut(seq=seq("drawn"), epoch=1)))).done.handle
        assert list(handle.output) == seen["drawn"][:3]
        other.send(opened(scheduler, "drawn"))
        adopt = other.send(pb.Adopt(seq=seq("drawn"), epoch=1, handle=handle, slabs=8))
        rest = pb.Turn(model="m", decode=[seq("drawn")], steps=99, slabs=8)
        await other.done(other.send(rest, after=[load_there, adopt]))
        assert await whole(scheduler, "drawn") == seen["drawn"]
        there.check()


async def test_a_constrained_sequence_goes_on_from_its_prefix(folder: Path, model: Path) -> None:
    async with rig(folder) as scheduler:
        seen = await outputs(scheduler, model, TorchBackend(), ["drawn"])
    for count in (1, 4):
        async with rig(folder) as scheduler:
            prefix = seen["drawn"][:count]
            rest = await outputs(scheduler, model, TorchBackend(), ["drawn"], prefix=prefix, epoch=2)
        assert prefix + rest["drawn"] == seen["drawn"]


@pytest.mark.parametrize("paged", [False, True])
async def test_a_constraint_that_cannot_be_compiled_ends_its_own_sequence(
    folder: Path, model: Path, paged: bool
) -> None:
    bad = mpb.Constraint(kind=mpb.CONSTRAINT_KIND_JSON_SCHEMA, text=json.dumps({"not": {}}), end_ids=[EOS])
    async with rig(folder) as scheduler:
        alone = await outputs(scheduler, model, TorchBackend(), ["free"])
    async with rig(folder) as scheduler, inside(config(folder), TorchBackend(paged=paged)):
        link, load = await ready(scheduler, model)
        link.send(opened(scheduler, "free"))
        link.send(opened(scheduler, "greedy", constraint=bad))
        asked = link.send(turn(["free", "greedy"]), after=[load])
        await link.done(asked)
        ends = [p for report in link.steps[asked] for p in report.progress if p.finish == mpb.FINISH_REASON_ERROR]
        assert [(p.seq.request, p.failure) for p in ends] == [("greedy", pb.FAILURE_KIND_INVALID)]
        assert "not" in ends[0].reason
        assert await scheduler.received_tokens("free", LENGTH) == alone["free"]
