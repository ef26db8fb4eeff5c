"""Stages `pool` and `roles`: a real pool of processes serves a trace; what every request got, and when.

`pool` has one engine for both roles; `roles` has an engine that prefills and one that decodes on the same GPU, so that
KV is handed over between processes. Before the trace every model is measured alone: by that and the device file the
simulator chooses an objective that part of the tokens miss, as neither all nor none tell anything.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.gpu_day.answers import Answers
from benchmarks.gpu_day.manifests import POLICIES, Roles, write_manifests, write_objective
from benchmarks.gpu_day.models import NAMES, make, shape_of
from benchmarks.gpu_day.spans import copy_rows
from benchmarks.gpu_day.stage import ENTRY, begin, parser_of, status
from benchmarks.gpu_day.summary import last
from benchmarks.gpu_day.where import Where
from benchmarks.report import Figures, Row
from benchmarks.truth import choose, through_the_stack, trace
from benchmarks.truth_cases import Case
from benchmarks.truth_stack import Alone, Reply, probe, replay

from aegaeon_cli.demo.stack import Stack, free_port
from aegaeon_cli.status import read_status
from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.devices import read_device
from aegaeon_simulator.workload import Arrival, Workload

DELAY_S = 0.0005  # from scheduler to engine, one way
_PRINTED_LINES, _KEPT_BYTES = 50, 24 << 20
_SLO = Slo(2.0, 0.1)  # to begin with, and where no device file is there to choose another by


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of a trace: requests per second of each model, seconds, and lengths in tokens."""

    rate: float
    seconds: float
    prompts: tuple[int, int]
    outputs: tuple[int, int]


TRAFFIC = Traffic(0.4, 40.0, (128, 2048), (50, 250))
SMALL_TRAFFIC = Traffic(0.8, 5.0, (16, 96), (10, 40))


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--roles", choices=tuple(POLICIES), required=True)
    arguments = parser.parse_args()
    name = "pool" if arguments.roles == "unified" else "roles"
    where, figures = begin(name, arguments)
    make(where.models, shape_of(where), where.device)
    with tempfile.TemporaryDirectory(dir=where.work) as scratch:
        asyncio.run(_serve(where, figures, name, arguments.roles, Path(scratch)))
    return status(figures, where.small)


async def _serve(where: Where, figures: Figures, name: str, roles: Roles, scratch: Path) -> None:
    traffic = SMALL_TRAFFIC if where.small else TRAFFIC
    workload = trace(list(NAMES), traffic.rate, traffic.seconds, 0, traffic.prompts, traffic.outputs)
    write_manifests(scratch, where, roles, _SLO)
    shared = ("--share-gpu",) if where.device != "cpu" else ()
    record = scratch / "events.jsonl"
    began = time.monotonic()
    stack = Stack(scratch, where.models, free_port(), record, shared)
    async with _log_kept(stack, where), stack:
        figures.add(Row("pool ready", time.monotonic() - began, "s"))
        alone = await probe(stack.state.url, NAMES, 2)
        figures.add(*_alone_rows(alone))
        slo = _objective(where, workload, POLICIES[roles], alone)
        write_objective(scratch, slo)
        await _apply(stack, scratch)
        before = await read_status(stack.state.scheduler)
        replies = await replay(stack.state.url, NAMES, workload)
        after = await read_status(stack.state.scheduler)
    figures.add(*_reply_rows(workload, replies, slo))
    changed = sum(e.switches for e in after.instances) - sum(e.switches for e in before.instances)
    waited = sum(e.switch_s for e in after.instances) - sum(e.switch_s for e in before.instances)
    figures.add(Row("switches", changed, "switches"), Row("waited at a switch, mean", _per(waited, changed), "ms"))
    figures.add(*copy_rows(record, last(where, "probes", "link, in")))
    _keep_events(record, where, name)
    figures.add(Row("left behind by the pool", len(stack.leftovers), "things", 0, "<="))
    Answers(roles, slo, workload, replies, changed, alone).write(where.replies(name))


def _objective(where: Where, workload: Workload, policy: str, alone: dict[str, Alone]) -> Slo:
    """What the simulator says about four of five tokens meet."""
    if not where.constants.exists():
        return _SLO
    machine = through_the_stack(read_device(str(where.constants)), alone)
    return choose(machine, workload, Case(policy), DELAY_S)


async def _apply(stack: Stack, manifests: Path) -> None:
    """Manifests with another objective. Raises RuntimeError when they are refused."""
    environment = os.environ | {"XDG_RUNTIME_DIR": str(stack.run_folders.parent)}
    command = [sys.executable, "-c", ENTRY, "apply", "-f", str(manifests)]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.DEVNULL)
    if status := await process.wait():
        raise RuntimeError(f"aegaeon apply ended with status {status}")


@asynccontextmanager
async def _log_kept(stack: Stack, where: Where) -> AsyncIterator[None]:
    """What the pool's processes printed joins pools.log.gz, however it ends; of a failure the end is printed."""
    try:
        yield
    except BaseException:
        print("\n".join(stack.log().splitlines()[-_PRINTED_LINES:]), flush=True)
        raise
    finally:
        with gzip.open(where.out / "pools.log.gz", "ab") as kept:
            kept.write(stack.log().encode()[-_KEPT_BYTES:])


def _keep_events(record: Path, where: Where, name: str) -> None:
    """The scheduler's event log, for `aegaeon replay`; of both roles in one engine alone, as few files come back."""
    if name == "pool":
        with record.open("rb") as lines, gzip.open(where.out / "events.jsonl.gz", "wb") as kept:
            shutil.copyfileobj(lines, kept)


def _alone_rows(alone: dict[str, Alone]) -> list[Row]:
    """Medians over the models, each alone in the pool."""
    rows = (("first token", "ttft_s"), ("step, one request", "step_s"), ("step, 8 requests", "batch_step_s"))
    return [
        Row(f"a model alone: {what}", 1000 * float(np.median([getattr(one, field) for one in alone.values()])), "ms")
        for what, field in rows
    ]


def _reply_rows(workload: Workload, replies: Sequence[Reply], slo: Slo) -> list[Row]:
    """What clients saw."""
    failed = [reply.error or "too few tokens" for reply, a in _both(replies, workload) if not _whole(reply, a)]
    for error in sorted(set(failed))[:3]:
        print(f"failed: {error}", flush=True)
    first = np.array([reply.times[0] for reply in replies if reply.times]) * 1e3
    between = np.concatenate([np.diff(reply.times) for reply in replies if len(reply.times) > 1]) * 1e3
    rows = [
        Row("requests", len(replies), "requests"),
        Row("requests that failed", len(failed), "requests", 0, "<="),
        Row("output tokens", sum(len(reply.tokens) for reply in replies), "tokens"),
        Row("objective: TTFT", 1000 * slo.ttft_s, "ms"),
        Row("objective: TBT", 1000 * slo.tbt_s, "ms"),
    ]
    for what, values in (("TTFT", first), ("TBT", between)):
        rows += [Row(f"{what}, p{p}", float(np.percentile(values, p)), "ms") for p in (50, 90, 99)]
    return rows


def _both(replies: Sequence[Reply], workload: Workload) -> zip[tuple[Reply, Arrival]]:
    return zip(replies, workload.arrivals, strict=True)


def _whole(reply: Reply, arrival: Arrival) -> bool:
    return not reply.error and len(reply.tokens) == arrival.output_tokens


def _per(total: float, count: int) -> float:
    return 1e3 * total / count if count else 0.0


if __name__ == "__main__":
    sys.exit(main())
