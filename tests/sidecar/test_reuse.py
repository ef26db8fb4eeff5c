"""Prefix reuse on a whole sidecar: what is reused, from which tier, with unchanged tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sidecar.rig import Link, Rig, config, inside, ready, seq

from aegaeon_proto.engine.ids import SeqId
from aegaeon_proto.v1 import engine_pb2 as pb

HEAD = [5 + 7 * i % 300 for i in range(48)]  # three blocks


async def answer(scheduler: Rig, link: Link, name: str, prompt: list[int]) -> list[int]:
    """Eight tokens, computed in one turn."""
    link.send(scheduler.open(name, "m", prompt, max_tokens=8))
    part = pb.PrefillPart(seq=seq(name), tokens=len(prompt))
    await link.done(link.send(pb.Turn(model="m", prefill=[part], decode=[seq(name)], steps=9, slabs=24)))
    return await scheduler.received_tokens(name, 8)


@pytest.fixture
def model(make_model: Callable[..., Path]) -> Path:
    return make_model("qwen2", max_position_embeddings=4096)


async def test_a_later_request_reuses_the_cached_prefix_and_gives_the_same_tokens(scheduler: Rig, model: Path) -> None:
    async with inside(config(scheduler.folder)) as engine:
        link = await ready(scheduler, model)
        engine.state.kv.prefix_reuse = False
        first = await answer(scheduler, link, "alone", HEAD)
        again = await answer(scheduler, link, "alone-2", HEAD + first + [9, 9])
        engine.state.kv.prefix_reuse = True
        assert await answer(scheduler, link, "one", HEAD) == first
        assert scheduler.tokens["one", 0][0].cached_tokens == 0
        assert await answer(scheduler, link, "two", HEAD + first + [9, 9]) == again
        assert scheduler.tokens["two", 0][0].cached_tokens == 48
        assert await answer(scheduler, link, "whole", HEAD) == first
        assert scheduler.tokens["whole", 0][0].cached_tokens == 32, "the last token is always computed"
        assert link.memory.reuse.device_tokens == 80


async def test_a_part_of_what_is_expected_to_be_left_completes_a_prompt_or_is_followed_by_the_rest(
    scheduler: Rig, model: Path
) -> None:
    """A scheduler that expects a beginning to be cached grants the whole prompt, and asks for what is behind it."""
    async with inside(config(scheduler.folder)) as engine:
        link = await ready(scheduler, model)
        engine.state.kv.prefix_reuse = False
        expected = await answer(scheduler, link, "whole", [*HEAD, 7, 9])
        for reuse, reported in ((False, 16), (True, 50)):
            engine.state.kv.prefix_reuse = reuse
            if reuse:
                await answer(scheduler, link, "before", HEAD)
            name = f"behind-{reuse}"
            link.send(scheduler.open(name, "m", [*HEAD, 7, 9], max_tokens=8))
            part = pb.PrefillPart(seq=seq(name), tokens=16)
            first = link.send(pb.Turn(model="m", prefill=[part], slabs=24))
            await link.done(first)
            assert engine.state.kv.sequences.require(SeqId(name, 0), 1).kv_tokens == reported
            rest = [] if reuse else [pb.PrefillPart(seq=seq(name), tokens=34)]
            await link.done(link.send(pb.Turn(model="m", prefill=rest, decode=[seq(name)], steps=9, slabs=24)))
            assert await scheduler.received_tokens(name, 8) == expected


async def test_swapped_out_prefixes_are_swapped_in_again(scheduler: Rig, model: Path) -> None:
    async with inside(config(scheduler.folder)) as engine:
        link = await ready(scheduler, model)
        link.send(scheduler.open("one", "m", HEAD, max_tokens=100))
        part = pb.PrefillPart(seq=seq("one"), tokens=len(HEAD))
        await link.done(link.send(pb.Turn(model="m", prefill=[part], slabs=24)))
        await link.done(link.send(pb.SwapOut(seq=seq("one"), epoch=1)))
        link.send(pb.Close(seq=seq("one"), epoch=1))
        expected = await answer(scheduler, link, "device", [*HEAD, 7])
        with engine.state.monitor.changed:
            slabs = engine.state.kv.device.take(engine.state.kv.device.slabs_free)  # nothing cached is left here
            engine.state.kv.device.pool.give(slabs)
        assert await answer(scheduler, link, "host", [*HEAD, 7]) == expected
        assert scheduler.tokens["host", 0][0].cached_tokens == 48
        assert link.memory.reuse.host_tokens == 48
        assert engine.state.kv.device.evicted > 0


async def test_prefix_reuse_can_be_disabled(scheduler: Rig, model: Path) -> None:
    async with inside(config(scheduler.folder, memory={"prefix_reuse": False})) as engine:
        link = await ready(scheduler, model)
        assert await answer(scheduler, link, "one", HEAD) == await answer(scheduler, link, "two", HEAD)
        assert scheduler.tokens["two", 0][0].cached_tokens == 0
        kv_shape = engine.state.table.models["m"].layout.kv_shape
        assert engine.state.kv.device.blocks(kv_shape).cached().size == 0


async def cached(scheduler: Rig, link: Link, name: str, prompt: list[int], **fields: Any) -> int:
    """Tokens of the prompt that were found."""
    link.send(scheduler.open(name, "m", prompt, max_tokens=1, **fields))
    part = pb.PrefillPart(seq=seq(name), tokens=len(prompt))
    await link.done(link.send(pb.Turn(model="m", prefill=[part], slabs=24)))
    await scheduler.received_tokens(name, 1)
    return int(scheduler.tokens[name, 0][0].cached_tokens)


async def test_sequences_of_another_salt_find_nothing(scheduler: Rig, model: Path) -> None:
    prompt = [*HEAD, 7]
    async with inside(config(scheduler.folder)):
        link = await ready(scheduler, model)
        assert await cached(scheduler, link, "alice", prompt, salt=b"alice") == 0
        assert await cached(scheduler, link, "bob", prompt, salt=b"bob") == 0
        assert await cached(scheduler, link, "unsalted", prompt) == 0, "of a gateway that knows no salts"
        assert await cached(scheduler, link, "alice-2", prompt, salt=b"alice") > 0
        assert await cached(scheduler, link, "bob-2", [*HEAD, 8], salt=b"bob") > 0
        assert await cached(scheduler, link, "unsalted-2", prompt) > 0


async def test_the_public_beginning_of_a_prompt_is_shared_whatever_the_salt(scheduler: Rig, model: Path) -> None:
    """Whole blocks of it: 20 of the 48 tokens are public, so one of the three blocks."""
    prompt = [*HEAD, 7]
    async with inside(config(scheduler.folder)):
        link = await ready(scheduler, model)
        assert await cached(scheduler, link, "alice", prompt, salt=b"alice", public_tokens=20) == 0
        assert await cached(scheduler, link, "bob", prompt, salt=b"bob", public_tokens=20) == 16
        assert await cached(scheduler, link, "carol", prompt, salt=b"carol") == 0, "her prompt is not known as public"
        assert await cached(scheduler, link, "alice-2", prompt, salt=b"alice", public_tokens=20) > 0


async def test_a_salt_of_another_length_than_gateways_make_is_refused(scheduler: Rig, model: Path) -> None:
    async with inside(config(scheduler.folder)):
        link = await ready(scheduler, model)
        failed = await link.refused(link.send(scheduler.open("one", "m", HEAD, salt=bytes(65))))
        assert "65 bytes are more than 64" in failed.reason
