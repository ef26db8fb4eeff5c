"""Random programs of switches, swaps, hand-offs and cancels on two sidecars, on whichever kind of device.

Each sequence's tokens are held against those that it gives alone on a third.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.rig import SLAB, Link, Rig, config, inside, seq, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends import Backend
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.engine.engine import Engine

LENGTH = 24
CACHED = mpb.MODEL_PHASE_CACHED
Adapters = Mapping[str, Mapping[str, Path]]  # by model and by name
NONE: Adapters = {}


@dataclass(frozen=True, slots=True)
class Machine:
    """What the programs run on. `slabs`: two models fit, and little more.

    `chunk`: prompts are cut at its multiples alone, where tokens may depend on how many are computed at a time.
    """

    backend: Callable[[], Backend] = TorchBackend
    device: str = "cpu"
    dtype: str = "float32"
    slab_bytes: int = SLAB
    slabs: int = 28
    prefill_chunk_tokens: int = 7
    chunk: int = 1
    host_cache_bytes: int = 64 << 20
    ranks: int = 1

    def settings(self, folder: Path, name: str, prefix_reuse: bool = True) -> dict[str, Any]:
        """Of one sidecar."""
        memory = {
            "device_bytes": self.slabs * self.slab_bytes,
            "host_kv_bytes": 64 * self.slab_bytes * self.ranks,
            "slab_bytes": self.slab_bytes,
            "host_cache_bytes": self.host_cache_bytes,
            "prefix_reuse": prefix_reuse,
        }
        rest = {"device": self.device, "dtype": self.dtype, "prefill_chunk_tokens": self.prefill_chunk_tokens}
        return config(folder, name, memory=memory, ranks=self.ranks, **rest)


CPU = Machine()


@dataclass
class Story:
    """One sequence as the script knows it."""

    name: str
    model: str
    prompt: list[int]
    sampling: mpb.Sampling
    home: str = ""
    on_host: bool = False
    has_kv: bool = False
    left: int = 0
    adapter: str = ""
    ended: bool = False
    handle: pb.KvHandle | None = None


@dataclass
class Script:
    """Drives two sidecars with seeded programs; counts what it forced."""

    scheduler: Rig
    links: dict[str, Link]
    random: random.Random
    stories: list[Story]
    machine: Machine
    resident: dict[str, set[str]] = field(default_factory=lambda: {"a": set(), "b": set()})
    switches: int = 0
    moves: int = 0
    cancels: int = 0
    rounds: int = 0

    async def round(self, home: str) -> None:
        """A switch to a random model with swaps beside it, one turn of one to six steps, and perhaps a cancel."""
        link, rng = self.links[home], self.random
        open_here = [s for s in self.stories if s.home == home and not s.ended]
        if not open_here:
            return
        model = rng.choice(sorted({s.model for s in open_here}))
        mine = [s for s in open_here if s.model == model]
        fences = self._make_room(link, home, model, [s for s in open_here if s.model != model])
        load = link.send(pb.Load(model=model, slabs=self.machine.slabs), after=fences)
        inward = {
            link.send(pb.SwapIn(seq=seq(s.name), epoch=1, slabs=self.machine.slabs), after=fences): s
            for s in mine
            if s.on_host
        }
        turn = self._turn(link, mine, model, [load])
        chosen = [load, *inward, turn]
        self.rounds += 1
        if rng.random() < 0.2 or not self.rounds % 10:  # however few rounds a program takes
            link.send(pb.CancelCommand(id=rng.choice(chosen)))
            self.cancels += 1
        await asyncio.gather(*(link.outcome(i) for i in chosen))
        if link.outcomes[load].WhichOneof("body") == "done":
            self.switches += model not in self.resident[home]
            self.resident[home].add(model)
        for command, story in inward.items():
            self.moves += 1
            story.on_host = link.outcomes[command].WhichOneof("body") != "done"
        await self._learn(link, turn, mine)

    def _make_room(self, link: Link, home: str, model: str, others: list[Story]) -> list[int]:
        fences = []
        for story in [s for s in others if s.has_kv and not s.on_host]:
            fences.append(link.send(pb.SwapOut(seq=seq(story.name), epoch=1)))
            story.on_host = True
            self.moves += 1
        for other in sorted(self.resident[home] - {model}):
            if len(self.resident[home]) > 1 or self.random.random() < 0.7:
                fences.append(link.send(pb.Unload(model=other)))
                self.resident[home].discard(other)
        return fences

    def _turn(self, link: Link, mine: list[Story], model: str, after: list[int]) -> int:
        rng = self.random
        parts = [pb.PrefillPart(seq=seq(s.name), tokens=self._cut(s)) for s in mine if s.left]
        some = [seq(s.name) for s in mine if rng.random() < 0.8]
        steps = rng.randint(1, 6)
        return link.send(
            pb.Turn(model=model, prefill=parts, decode=some, steps=steps, slabs=self.machine.slabs), after=after
        )

    def _cut(self, story: Story) -> int:
        tokens = self.random.randint(1, story.left)
        return min(-(-tokens // self.machine.chunk) * self.machine.chunk, story.left)

    async def _learn(self, link: Link, turn: int, mine: list[Story]) -> None:
        by_name = {s.name: s for s in mine}
        for step in link.steps.get(turn, []):
            for progress in step.progress:
                story = by_name[progress.seq.request]
                story.has_kv = progress.kv_tokens > 0
                story.left = max(len(story.prompt) - progress.kv_tokens, 0)
                story.ended = story.ended or bool(progress.finish)

    async def hand_off(self) -> None:
        """Some sequences move to the other sidecar through the host tier."""
        for story in [s for s in self.stories if not s.ended and s.has_kv and self.random.random() < 0.15]:
            source, home = self.links[story.home], "b" if story.home == "a" else "a"
            target = self.links[home]
            out = await source.done(source.send(pb.SwapOut(seq=seq(story.name), epoch=1)))
            story.on_host = True
            target.send(self.open(story))
            adopt = pb.Adopt(seq=seq(story.name), epoch=1, handle=out.done.handle, slabs=self.machine.slabs)
            report = await target.outcome(target.send(adopt))
            if report.WhichOneof("body") == "done":
                source.send(pb.Close(seq=seq(story.name), epoch=1))
                story.home, story.on_host = home, False
                self.moves += 2
            else:
                assert report.failed.kind == pb.FAILURE_KIND_NO_MEMORY
                target.send(pb.Close(seq=seq(story.name), epoch=1))

    def open(self, story: Story) -> pb.Open:
        sampling = story.sampling
        given = {"max_tokens": LENGTH, "sampling": sampling, "adapter": story.adapter}
        return self.scheduler.open(story.name, story.model, story.prompt, **given)


def stories(rng: random.Random, models: list[str], count: int, adapters: Adapters = NONE) -> Iterator[Story]:
    """Some prompts begin alike, as those of one system prompt or of several choices of one request do: also those of
    different adapters of a model, and of the model without."""
    heads = {model: [rng.randrange(3, 384) for _ in range(32)] for model in models}
    for number in range(count):
        sampling = mpb.Sampling(top_p=1, repetition_penalty=1)
        if number % 3 == 1:
            sampling = mpb.Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1, seed=number)
        if number % 3 == 2:
            sampling = mpb.Sampling(
                temperature=0.9, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.3, seed=number
            )
        model = models[number % len(models)]
        head = heads[model][: rng.choice((0, 16, 32))]
        prompt = head + [rng.randrange(3, 384) for _ in range(rng.randint(2, 30 if not head else 5))]
        names = ["", *adapters.get(model, ())]
        adapter = names[number // len(models) % len(names)]
        yield Story(f"r{number}", model, prompt, sampling, left=len(prompt), adapter=adapter)


async def alone(scheduler: Rig, link: Link, story: Story, slabs: int) -> list[int]:
    """The output of a sequence that has the sidecar for itself."""
    link.send(
        scheduler.open(
            f"alone-{story.name}",
            story.model,
            story.prompt,
            max_tokens=LENGTH,
            sampling=story.sampling,
            adapter=story.adapter,
        )
    )
    load = link.send(pb.Load(model=story.model, slabs=slabs))
    name = seq(f"alone-{story.name}")
    parts = [pb.PrefillPart(seq=name, tokens=999)]
    turn = pb.Turn(model=story.model, prefill=parts, decode=[name], steps=LENGTH, slabs=slabs)
    await link.done(link.send(turn, after=[load]))
    await link.done(link.send(pb.Unload(model=story.model)))
    return await scheduler.received_tokens(name.request, LENGTH)


def assert_empty(engine: Engine) -> None:
    engine.check()
    assert engine.state.kv.device.slabs_free == engine.state.kv.device.pool.total
    assert engine.state.kv.host.slabs_free == engine.state.kv.host.pool.total
    assert len(engine.state.kv.sequences) == 0


async def serving(scheduler: Rig, name: str, models: dict[str, Path], adapters: Adapters = NONE) -> Link:
    """The sidecar of this name, once it has all models in its host cache."""
    link = await scheduler.cached(
        [spec(model, path, adapters=adapters.get(model)) for model, path in models.items()], name
    )
    await link.until(lambda: all(len(link.adapters(model, CACHED)) == len(some) for model, some in adapters.items()))
    return link


def difference(story: Story, received: list[int], alone: list[int]) -> str:
    """Where a sequence's tokens part from those that it gives alone, and which it is."""
    pairs = enumerate(zip(received, alone, strict=True))
    at = next(number for number, (token, expected) in pairs if token != expected)
    context = len(story.prompt) + at
    return f"token {at}, of {context} before it: {received[at:]} instead of {alone[at:]}; {story}"


async def run_identically(
    scheduler: Rig,
    models: dict[str, Path],
    seed: int,
    first: Backend,
    second: Backend,
    machine: Machine = CPU,
    adapters: Adapters = NONE,
) -> int:
    """A seeded program on two sidecars; each of its sequences alone on a third, of the machine's own backend.

    Returns how many tokens of prompts were found on the devices.
    """
    rng = random.Random(seed)
    conversations = list(stories(rng, sorted(models), 16, adapters))
    async with inside(machine.settings(scheduler.folder, "alone", prefix_reuse=False), machine.backend()):
        link = await serving(scheduler, "alone", models, adapters)
        expected = [await alone(scheduler, link, story, machine.slabs) for story in conversations]
    local, remote = machine.settings(scheduler.folder, "a"), machine.settings(scheduler.folder, "b")
    async with inside(local, first) as a, inside(remote, second) as b:
        links = {name: await serving(scheduler, name, models, adapters) for name in ("a", "b")}
        script = Script(scheduler, links, rng, conversations, machine)
        coming = list(enumerate(conversations))
        while any(not story.ended for story in conversations):
            for number, story in [coming.pop(0) for _ in coming[:2]]:  # later ones find what earlier ones computed
                story.home = "ab"[number % 2]
                links[story.home].send(script.open(story))
            await asyncio.gather(script.round("a"), script.round("b"))
            a.check()
            b.check()
            await script.hand_off()
        for story, tokens in zip(conversations, expected, strict=True):
            received = await scheduler.received_tokens(story.name, LENGTH)
            assert received == tokens, difference(story, received, tokens)
        for home, link in links.items():
            for model in sorted(script.resident[home]):
                await link.done(link.send(pb.Unload(model=model)))
        assert_empty(a)
        assert_empty(b)
        assert script.switches + script.moves > 150, (script.switches, script.moves, script.cancels)
        assert script.cancels > 3
        return a.state.kv.reuse.on_device + b.state.kv.reuse.on_device
