"""Thousands of forced switches under random traffic, and every output held against Hugging Face transformers.

Real processes: two engines whose memory holds fewer models than are asked for, and objectives that cannot be met, so
that models and KV caches move all the time; with policy `paper` a third one prefills. Requests have random prompts and
lengths down to one token; some clients leave in the middle. A second part sends the same seeded requests alone and
under load and counts the texts that differ.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from benchmarks.random_traffic import Client, Deck, Load, Output
from benchmarks.report import Row, read_settings, report

from aegaeon_cli.demo.command import directories
from aegaeon_cli.demo.stack import Stack, free_port
from aegaeon_cli.demo.verify import TIE, Verdict, eos_id, verify, with_end
from aegaeon_cli.models import make_models, questions
from aegaeon_cli.status import watch_status
from aegaeon_operator.spec import load_manifests
from aegaeon_proto.v1.engine_pb2 import Role

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart"
ROLES = {
    "slack": {"engines": {"replicas": 2}},
    "paper": {"prefill": {"replicas": 1}, "decode": {"replicas": 2}},
}
SMALL = {"slabSize": "256Ki", "hostModelCache": "64Mi", "hostKv": "32Mi"}
OBJECTIVE = {"ttft": "100ms", "tbt": "10ms"}  # everything is due at once: the least served is next
STATUS_S = 0.5
OUTPUTS = 200  # at least, however soon the switches have come


async def switches_reach(scheduler: str, wanted: int, enough: Callable[[], bool], limit_s: float) -> int:
    """Wait until the engines that decode have switched `wanted` times and it is `enough`, or for `limit_s`.

    Returns how often they have.
    """
    seen, began, printed = 0, time.monotonic(), 0
    async for status in watch_status(scheduler, STATUS_S):
        seen = sum(engine.switches for engine in status.instances if engine.role != Role.ROLE_PREFILL)
        elapsed = time.monotonic() - began
        if seen >= printed + max(1, wanted // 20):
            printed = seen
            print(f"{elapsed:7.1f} s  {seen:6d} of {wanted} switches", flush=True)
        if (seen >= wanted and enough()) or elapsed > limit_s:
            break
    return seen


@asynccontextmanager
async def small_stack(models: Path, policy: str, q_max: str, device: str) -> AsyncIterator[Stack]:
    """Engines with little memory and short turns. Raises if anything of it stays behind."""
    with tempfile.TemporaryDirectory() as folder:
        write_manifests(Path(folder), policy, SMALL | {"deviceBytes": device}, q_max)
        async with Stack(Path(folder), models, free_port()) as stack:
            yield stack
    if stack.leftovers:
        raise SystemExit("left behind: " + "; ".join(stack.leftovers))


def write_manifests(folder: Path, policy: str, memory: dict[str, str], q_max: str) -> None:
    """The quickstart in the roles that the policy has, with this memory and these turns."""
    pool = yaml.safe_load((QUICKSTART / "gpupool.yaml").read_text())
    spec = {name: value for name, value in pool["spec"].items() if name not in ROLES["slack"] | ROLES["paper"]}
    scheduling = {"policy": policy, "qMax": q_max, "minStay": "1ms", "maxGroupSize": 8, "hold": "60s"}
    pool["spec"] = spec | ROLES[policy] | {"memory": memory, "scheduling": scheduling}
    (folder / "gpupool.yaml").write_text(yaml.safe_dump(pool))
    models = yaml.safe_load((QUICKSTART / "modelpool.yaml").read_text())
    for model in models["spec"]["models"]:
        model["slo"] = OBJECTIVE
    (folder / "modelpool.yaml").write_text(yaml.safe_dump(models))


async def compare_seeded(client: Client, deck: Deck, width: int, count: int) -> list[tuple[Output, Output]]:
    """The same seeded requests, each alone and then all under load."""
    print(f"{count} seeded requests, alone and under load", flush=True)
    requests = [deck.draw_seeded() for _ in range(count)]
    alone = [await client.ask(request) for request in requests]
    load = Load(client, deck, width)
    async with load.running():
        loaded = await asyncio.gather(*(client.ask(request) for request in requests))
    return list(zip(alone, loaded, strict=True))


def judge(outputs: Sequence[Output], models: dict[str, Path], tie: float = TIE) -> list[tuple[Output, Verdict]]:
    """Every output that has tokens against transformers; equal ones are computed once."""
    known: dict[tuple[Any, ...], Verdict] = {}
    verdicts = []
    for output in outputs:
        request, directory = output.request, models[output.request.model]
        tokens = with_end(output.tokens, output.finish_reason, eos_id(directory))
        key = (request.model, request.prompt, tuple(tokens))
        if key not in known:
            known[key] = verify(directory, request.prompt, tokens, tie)
        verdicts.append((output, known[key]))
    return verdicts


def rows(wanted: int, switched: int, outputs: Sequence[Output], verdicts: list[tuple[Output, Verdict]]) -> list[Row]:
    """The figures of the greedy part; prints what differs."""
    for output, verdict in verdicts:
        if not verdict.identical:
            where = f"token {verdict.first_difference} of {verdict.positions}, {verdict.gap:.3g} below the largest"
            print(f"different: {output.request.model}, prompt of {len(output.request.prompt)} tokens: {where}")
    left = sum(output.finish_reason is None and not output.error for output in outputs)
    return [
        Row("switches of the engines that decode", switched, "switches", wanted),
        Row("outputs checked", len(verdicts), "outputs"),
        Row("of which the client left early", left, "outputs"),
        Row("requests that failed", sum(bool(output.error) for output in outputs), "requests", 0, "<="),
        Row("outputs not identical to transformers", sum(not v.identical for _, v in verdicts), "outputs", 0, "<="),
        Row("positions checked", sum(v.positions for _, v in verdicts), "tokens"),
        Row(f"ties closer than {TIE:g}", sum(v.ties for _, v in verdicts), "tokens"),
    ]


def seeded_rows(pairs: Sequence[tuple[Output, Output]]) -> list[Row]:
    """The figures of the seeded part."""
    failed = sum(bool(alone.error or loaded.error) for alone, loaded in pairs)
    different = sum(alone.tokens != loaded.tokens for alone, loaded in pairs)
    return [
        Row("seeded requests, alone and under load", len(pairs), "requests"),
        Row("of which failed", failed, "requests", 0, "<="),
        Row("of which the texts differ", different, "requests"),
    ]


async def run(arguments: argparse.Namespace) -> bool:
    """Both parts against one stack; True when every figure holds."""
    models = directories(load_manifests(QUICKSTART, arguments.models).pools[0])
    deck = Deck(models, questions(arguments.models), arguments.seed)
    async with (
        small_stack(arguments.models, arguments.policy, arguments.q_max, arguments.device_bytes) as stack,
        Client(stack.state.url) as client,
    ):
        load = Load(client, deck, arguments.width)
        async with load.running():
            switched = await switches_reach(
                stack.state.scheduler,
                arguments.switches,
                lambda: len(load.outputs) >= OUTPUTS,
                arguments.limit_s,
            )
        pairs = await compare_seeded(client, deck, arguments.width, arguments.seeded)
    print(f"{len(load.outputs)} outputs against transformers", flush=True)
    verdicts = judge([output for output in load.outputs if output.tokens], models)
    figures = rows(arguments.switches, switched, load.outputs, verdicts) + seeded_rows(pairs)
    return report(name_of(arguments.policy), figures, arguments.short)


def name_of(policy: str) -> str:
    """Of the file with the figures: the default policy's has the plain name."""
    return "exactness" if policy == "slack" else f"exactness-{policy}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--switches", type=int, default=10_000, help="switches of the engines that decode to wait for")
    parser.add_argument("--policy", choices=tuple(ROLES), default="slack", help="default: slack")
    parser.add_argument("--models", type=Path, required=True, help="folder of `aegaeon models make`")
    parser.add_argument("--seeded", type=int, default=32, help="seeded requests to compare alone and under load")
    parser.add_argument("--width", type=int, default=16, help="requests that are open at a time")
    parser.add_argument("--q-max", default="5ms", help="longest turn of policy paper; short ones force switches")
    parser.add_argument("--device-bytes", default="11Mi", help="of each engine; a model takes 4 to 5 MiB")
    parser.add_argument("--limit-s", type=float, default=1800.0, help="give up waiting after so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    arguments = read_settings(parser)
    arguments.models = arguments.models.absolute()
    make_models(arguments.models, print)
    sys.exit(0 if asyncio.run(run(arguments)) else 1)


if __name__ == "__main__":
    main()
