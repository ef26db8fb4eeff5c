"""Logprobs of a prompt: complete however the prompt is cut into chunks and turns, and whatever is cached of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sidecar.rig import Link, Rig, config, inside, seq, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import gateway_pb2
from aegaeon_proto.v1 import model_pb2 as mpb

PROMPT = [(37 * i) % 378 + 6 for i in range(90)]
ASKED = mpb.Sampling(top_p=1, repetition_penalty=1, prompt_logprobs=2)


async def loaded(scheduler: Rig, directory: Path) -> Link:
    link = await scheduler.cached([spec("m", directory)])
    await link.done(link.send(pb.Load(model="m", slabs=link.models["m"].footprint.weight_slabs)))
    return link


async def prefilled(scheduler: Rig, link: Link, name: str, *parts: int) -> gateway_pb2.Token:
    """Its first token, after its prompt was computed in turns of so many tokens."""
    link.send(scheduler.open(name, "m", PROMPT, max_tokens=1, sampling=ASKED))
    for tokens in parts:
        part = pb.PrefillPart(seq=seq(name), tokens=tokens)
        await link.done(link.send(pb.Turn(model="m", prefill=[part], slabs=8)))
    await scheduler.received_tokens(name, 1)
    return scheduler.tokens[name, 0][0]


def reference(directory: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return torch.as_tensor(model(torch.tensor([PROMPT])).logits[0].log_softmax(-1))


async def test_every_token_but_the_first_is_scored_as_transformers_does(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder)):
        link = await loaded(scheduler, scheduler.models["qwen3"])
        once = await prefilled(scheduler, link, "once", 999)
        again = await prefilled(scheduler, link, "again", 30, 1, 59)
    expected = reference(scheduler.models["qwen3"])
    for token in (once, again):
        assert token.cached_tokens == 0, "what is found in the cache has no logits"
        assert [said.token for said in token.prompt] == PROMPT[1:]
        for position, said in enumerate(token.prompt):
            assert said.logprob == pytest.approx(float(expected[position, said.token]), abs=2e-4)
            assert [top.token for top in said.top] == expected[position].topk(2).indices.tolist()


async def test_too_many_are_refused_by_name(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder)):
        link = await loaded(scheduler, scheduler.models["llama"])
        sampling = mpb.Sampling(top_p=1, repetition_penalty=1, prompt_logprobs=21)
        failed = await link.refused(link.send(scheduler.open("r", "m", PROMPT, sampling=sampling)))
        assert "prompt_logprobs" in failed.reason
