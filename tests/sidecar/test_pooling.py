"""Prompts of models that generate no text: one result, sent once and until it is acknowledged, and no KV behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sidecar.rig import Link, Rig, config, inside, seq, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.backends.torch import TorchBackend

PROMPT = [(37 * i) % 378 + 6 for i in range(90)]
EMBEDS = mpb.Pooling()


async def loaded(scheduler: Rig, *specs: mpb.ModelSpec) -> Link:
    link = await scheduler.cached(specs)
    for name in (model.name for model in specs):
        await link.done(link.send(pb.Load(model=name, slabs=link.models[name].footprint.weight_slabs)))
    return link


async def pooled(
    scheduler: Rig, link: Link, name: str, prompt: list[int], *parts: int, epoch: int = 1
) -> NDArray[np.float32]:
    """The result, after its prompt was computed in turns of so many tokens."""
    link.send(scheduler.open(name, "m", prompt, max_tokens=1, epoch=epoch, pooling=EMBEDS))
    for tokens in parts:
        part = pb.PrefillPart(seq=seq(name), tokens=tokens)
        await link.done(link.send(pb.Turn(model="m", prefill=[part], slabs=8)))
    await scheduler.received_tokens(name, 1)
    token = scheduler.tokens[name, 0][0]
    assert token.finish == mpb.FINISH_REASON_STOP
    return np.frombuffer(token.pooled, dtype="<f4")


def reference(directory: Path, prompt: list[int]) -> NDArray[np.float32]:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return np.asarray(model(torch.tensor([prompt])).last_hidden_state[0, -1].numpy())


async def test_embeddings_are_transformers_and_leave_nothing(scheduler: Rig, embedder: Path) -> None:
    async with inside(config(scheduler.folder)) as engine:
        link = await loaded(scheduler, spec("m", embedder))
        assert link.models["m"].footprint.task == "embed"
        free = link.memory.slabs_free
        once = await pooled(scheduler, link, "once", PROMPT, 999)
        again = await pooled(scheduler, link, "again", PROMPT, 30, 1, 59)
        other = await pooled(scheduler, link, "other", PROMPT[:50], 999)
        await link.until(lambda: link.memory.slabs_free == free)
        assert len(engine.state.kv.sequences) == 0
        assert all(not shape.used_blocks for shape in link.memory.shapes)
        assert link.memory.reuse.prompt_tokens == 0, "nothing of a prompt is looked for, or kept"
    for got, prompt in ((once, PROMPT), (again, PROMPT), (other, PROMPT[:50])):
        assert np.allclose(got, reference(embedder, prompt), rtol=1e-4, atol=1e-5)


class Counting(TorchBackend):
    """`tokens`: of each pass, those of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[list[int]] = []

    def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
        self.tokens.append([len(part.tokens) for part in inputs])
        return super().launch(model, inputs, after)


async def test_prompts_of_a_turn_share_passes_and_are_as_alone(scheduler: Rig, embedder: Path) -> None:
    """A pass has 100 tokens at most, whichever prompts they are of, and however a prompt is cut in the command."""
    prompts = {"long": PROMPT, "short": PROMPT[:20], "single": PROMPT[:1], "cut": PROMPT[20:60]}
    backend = Counting()
    async with inside(config(scheduler.folder, max_pooled_tokens=100), backend):
        link = await loaded(scheduler, spec("m", embedder))
        alone = {name: await pooled(scheduler, link, f"{name}-alone", prompts[name], 999) for name in prompts}
        del backend.tokens[:]
        for name, prompt in prompts.items():
            link.send(scheduler.open(name, "m", prompt, max_tokens=1, pooling=EMBEDS))
        sizes = {"long": [90], "short": [999], "single": [1], "cut": [16, 16, 8]}
        parts = [pb.PrefillPart(seq=seq(name), tokens=size) for name in prompts for size in sizes[name]]
        await link.done(link.send(pb.Turn(model="m", prefill=parts, slabs=32)))
        for name in prompts:
            await scheduler.received_tokens(name, 1)
            together = np.frombuffer(scheduler.tokens[name, 0][0].pooled, dtype="<f4")
            assert np.array_equal(together, alone[name]), name
    assert backend.tokens == [[90, 10], [10, 1, 16], [16], [8]]


async def test_a_prompt_that_cannot_be_computed_ends_alone(scheduler: Rig, embedder: Path) -> None:
    class Refusing(Counting):
        def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
            launched = super().launch(model, inputs, after)
            if any(part.tokens[0] == 7 for part in inputs):
                raise RuntimeError("not this one")
            return launched

    prompts = {"good": PROMPT[:20], "bad": [7] * 5, "better": PROMPT[20:40]}
    async with inside(config(scheduler.folder, max_pooled_tokens=100), Refusing()):
        link = await loaded(scheduler, spec("m", embedder))
        for name, prompt in prompts.items():
            link.send(scheduler.open(name, "m", prompt, max_tokens=1, pooling=EMBEDS))
        parts = [pb.PrefillPart(seq=seq(name), tokens=999) for name in prompts]
        await link.done(link.send(pb.Turn(model="m", prefill=parts, slabs=32)))
        for name in ("good", "better"):
            await scheduler.received_tokens(name, 1)
            values = np.frombuffer(scheduler.tokens[name, 0][0].pooled, dtype="<f4")
            assert np.allclose(values, reference(embedder, prompts[name]), rtol=1e-4, atol=1e-5)
        assert ("bad", 0) not in scheduler.tokens


async def test_a_result_comes_once_though_its_stream_breaks(scheduler: Rig, embedder: Path) -> None:
    """What was sent and not acknowledged is sent again; under a later epoch it is computed again, to the same bytes."""
    async with inside(config(scheduler.folder)):
        link = await loaded(scheduler, spec("m", embedder))
        scheduler.deaf = True
        first = await pooled(scheduler, link, "r", PROMPT, 999)
        await scheduler.vanish()
        scheduler.deaf = False
        await scheduler.serve()
        before = scheduler.received
        await scheduler.until(lambda: scheduler.received > before)
        assert np.array_equal(np.frombuffer(scheduler.tokens["r", 0][0].pooled, dtype="<f4"), first)
        link = await scheduler.link("a", attachments=2)
        assert not link.hello.held, "it has ended"
        del scheduler.tokens["r", 0]
        assert np.array_equal(await pooled(scheduler, link, "r", PROMPT, 999, epoch=2), first)


async def test_a_sequence_is_of_its_models_kind(scheduler: Rig, embedder: Path) -> None:
    async with inside(config(scheduler.folder)):
        link = await loaded(scheduler, spec("m", embedder), spec("chat", scheduler.models["qwen3"]))
        refused = await link.refused(link.send(scheduler.open("a", "m", PROMPT)))
        assert "generates no text" in refused.reason
        refused = await link.refused(link.send(scheduler.open("b", "chat", PROMPT, pooling=EMBEDS)))
        assert "neither embeddings nor scores" in refused.reason
        refused = await link.refused(link.send(scheduler.open("c", "m", PROMPT * 3, pooling=EMBEDS)))
        assert "more than 256" in refused.reason
        asked = mpb.Pooling(logits_of=[384])
        refused = await link.refused(link.send(scheduler.open("d", "m", PROMPT, pooling=asked)))
        assert refused.kind == pb.FAILURE_KIND_INVALID


async def test_a_chat_model_and_an_embedder_of_the_same_files_share_an_engine(scheduler: Rig) -> None:
    """Two models: what is kept of the chat's prompt is not for embeddings, though it would be the same."""
    embeds = spec("m", scheduler.models["qwen3"])
    embeds.task = "embed"
    async with inside(config(scheduler.folder)):
        link = await loaded(scheduler, spec("chat", scheduler.models["qwen3"]), embeds)
        link.send(scheduler.open("talk", "chat", PROMPT, max_tokens=3))
        part = pb.PrefillPart(seq=seq("talk"), tokens=99)
        turn = link.send(pb.Turn(model="chat", prefill=[part], decode=[seq("talk")], steps=3, slabs=8))
        got = await pooled(scheduler, link, "r", PROMPT, 999)
        await link.done(turn)
        assert len(await scheduler.received_tokens("talk", 3)) == 3
        assert scheduler.tokens["r", 0][0].cached_tokens == 0
    assert np.allclose(got, reference(scheduler.models["qwen3"], PROMPT), rtol=1e-4, atol=1e-5)
