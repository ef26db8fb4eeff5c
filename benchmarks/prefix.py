"""Conversations of several turns, replayed with and without reuse of their prefix, and with reuse within a tenant: TTFT
in pairs, and hit rates.

A conversation is a chain of ShareGPT pairs: the prompt of a turn is all that was said before and the next question.
Lengths are scaled down by 8, with the model; tokens are random, which changes no length. Answers are as long as the
pair says. Conversations take turns, so that others come between two turns of one; with a small device most of what
is kept lies on the host tier by then.
"""

from __future__ import annotations

import asyncio
import csv
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.report import Row, report

from aegaeon_cli.bench.testing.rig import OneEngine, Size, make_model, one_engine
from aegaeon_proto.engine import commands

LENGTHS = Path(__file__).parent / "data" / "sharegpt_pairs.csv"
SCALE = 8
CONVERSATIONS, TURNS = 6, 4
SLAB = 1 << 20
VOCABULARY = 1024
TENANT = b"salt of a tenant"


@dataclass
class Conversation:
    """`turns`: tokens of each question, and how long the answer is; `said`: everything so far."""

    name: str
    turns: list[tuple[list[int], int]]
    said: list[int] = field(default_factory=list)


def conversations(seed: int) -> list[Conversation]:
    """Chains of TURNS pairs each, with lengths from the data and random tokens."""
    draw = random.Random(seed)
    with LENGTHS.open() as file:
        pairs = [(int(row["input_len"]), int(row["output_len"])) for row in csv.DictReader(file)]
    draw.shuffle(pairs)
    usual = iter([(i // SCALE + 1, min(o // SCALE + 1, 24)) for i, o in pairs if 8 * SCALE < i < 160 * SCALE])
    made = []
    for number in range(CONVERSATIONS):
        turns = [([draw.randrange(3, VOCABULARY) for _ in range(i)], o) for i, o in (next(usual) for _ in range(TURNS))]
        made.append(Conversation(f"c{number}", turns))
    return made


async def turn(one: OneEngine, chat: Conversation, number: int, mark: str, salt: bytes) -> float:
    """One question and its answer; returns the seconds until the first token."""
    question, answer = chat.turns[number]
    chat.said += question
    name = one.open(f"{mark}-{chat.name}-{number}", "m", chat.said, salt=salt)
    begin = time.monotonic()
    part = commands.PrefillPart(seq=name, tokens=len(chat.said))
    slabs = one.engine.state.kv.device.slabs_free
    prefill = one.send(commands.Turn(model="m", prefill=(part,), slabs=slabs))
    await one.outcome(prefill)
    ttft = one.outbox.ends[prefill] - begin
    await one.outcome(one.send(commands.Turn(model="m", decode=(name,), steps=answer, slabs=slabs)))
    sequence = one.engine.state.kv.sequences.get(name)
    assert sequence is not None
    chat.said += sequence.output
    swap = one.send(commands.SwapOut(seq=name, epoch=1))  # the host tier keeps what the device will need for others
    await one.outcome(swap)
    one.send(commands.Close(seq=name, epoch=1))
    return ttft


async def replay(
    one: OneEngine, seed: int, mark: str, reuse: bool, salt: bytes = b""
) -> tuple[list[list[float]], list[list[int]], float]:
    """TTFT by turn, everything said by conversation, and the share of prompts that was cached."""
    kv, chats = one.engine.state.kv, conversations(seed)
    kv.prefix_reuse, before = reuse, replace(kv.reuse)
    ttft = [[await turn(one, each, number, mark, salt) for each in chats] for number in range(TURNS)]
    cached = kv.reuse.on_device + kv.reuse.on_host - before.on_device - before.on_host
    return ttft, [each.said for each in chats], cached / max(kv.reuse.prompt_tokens - before.prompt_tokens, 1)


async def run(folder: Path) -> bool:
    model = make_model(folder / "m", 0, Size(hidden=256, layers=4, vocabulary=VOCABULARY))
    async with one_engine(folder, 40 * SLAB, SLAB, 64 << 20, 256 * SLAB, prefix_reuse=True) as one:
        await one.serve({"m": model})
        await one.outcome(one.send(commands.Load(model="m", slabs=32)))
        await replay(one, 99, "warm", reuse=False)
        ratios, same, later, shares = [], True, [], []
        for seed in (1, 2, 3):
            without, output, _ = await replay(one, seed, f"{seed}-off", reuse=False)
            with_reuse, again, pool = await replay(one, seed, f"{seed}-on", reuse=True)
            _, salted, tenant = await replay(one, seed, f"{seed}-tenant", reuse=True, salt=TENANT)
            same = same and output == again == salted
            shares.append((pool, tenant))
            pairs = [
                (a, b) for x, y in zip(with_reuse[1:], without[1:], strict=True) for a, b in zip(x, y, strict=True)
            ]
            ratios += [a / b for a, b in pairs]
            later += pairs
        one.engine.check()
        found, evicted = one.engine.state.kv.reuse, one.engine.state.kv.device.evicted
    return report(
        "prefix",
        [
            Row("TTFT of later turns, with reuse / without (paired)", statistics.median(ratios), "ratio", 1.0, "<="),
            Row("TTFT of later turns with reuse", statistics.median(a for a, _ in later) * 1e3, "ms"),
            Row("TTFT of later turns without", statistics.median(b for _, b in later) * 1e3, "ms"),
            Row("tokens of prompts found on the device", found.on_device / found.prompt_tokens, "of all"),
            Row("tokens of prompts found on the host", found.on_host / found.prompt_tokens, "of all"),
            Row("cached blocks evicted on the device", float(evicted), "blocks"),
            Row(
                "share of prompts cached: within a tenant, to within the pool",
                statistics.mean(tenant for _, tenant in shares),
                "of all",
                statistics.mean(pool for pool, _ in shares),
                ">=",
                0.99,
            ),
            Row("replays whose answers are the same with and without", float(same), "of all", 1.0),
        ],
    )


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="aegaeon-bench-") as folder:
        return not asyncio.run(run(Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
