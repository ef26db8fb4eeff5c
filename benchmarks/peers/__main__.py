"""`python -m benchmarks.peers` (`make bench-peers`): eight models with room for two, here and on the peers."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from benchmarks.conditions import conditions
from benchmarks.peers.ahead import rows
from benchmarks.peers.client import Answer, ask, replay
from benchmarks.peers.figure import draw
from benchmarks.peers.memory import Watch
from benchmarks.peers.models import NAMES, make, words
from benchmarks.peers.score import Score, score
from benchmarks.peers.systems import Command, System, Where, systems
from benchmarks.peers.trace import Session, trace
from benchmarks.report import line, result_file

from aegaeon_cli.folders import models_folder
from aegaeon_native import cpu_level
from aegaeon_native.libraries import lower_libraries

LOADS = (0.3, 1.0, 2.0)
SECONDS, DRAIN_S = 20.0, 15.0
_START_S = 180.0
_LAST_LINES = 5
_SEED = 1


def main() -> None:
    """Every system at every load, one after the other; results, and the figure of them."""
    given = _arguments()
    lower_libraries(os.environ)
    tokenizer = models_folder() / "llama"
    make(given.models, tokenizer, given.peers)
    traces = [trace(words(tokenizer), load, SECONDS, _SEED + index) for index, load in enumerate(LOADS)]
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="aegaeon-peers-") as scratch:
        where = Where(given.models, Path(scratch), given.vllm, given.peers, given.llama_swap)
        for system in systems(where):
            if given.only in system.name:
                found.append(_measure(system, where, traces))
                _keep(found, given.only)
    if not given.only:
        draw(found, SECONDS + DRAIN_S, result_file("peers").stem)
        for row in rows(found, SECONDS + DRAIN_S):
            print(line(row), flush=True)


def _keep(found: Sequence[dict[str, Any]], only: str) -> None:
    """After each system, so that what ends the run loses one."""
    if not only:
        about = {"cpu_level": cpu_level(), **conditions("peers"), "seconds": SECONDS, "then_s": DRAIN_S}
        kept = {**about, "systems": found}
        result_file("peers").write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, about in (("models", "their folder"), ("vllm", "Python with vLLM"), ("peers", "Python with the peers")):
        parser.add_argument(f"--{name}", type=Path, required=True, help=about)
    parser.add_argument("--llama-swap", type=Path, help="the program; without it another proxy stands for it")
    parser.add_argument("--only", default="", help="systems with this in their names; nothing is written")
    return parser.parse_args()


def _measure(system: System, where: Where, traces: Sequence[Sequence[Session]]) -> dict[str, Any]:
    print(f"\n== {system.name}\n   {system.settings}\n   lost at a switch: {system.loses}", flush=True)
    command = system.command(where)
    runs = []
    log = where.scratch / f"{command.port}.log"
    with _running(command, log) as pid:
        first = _started(command, log)
        for load, sessions in zip(LOADS, traces, strict=True):
            busy = os.getloadavg()[0]
            with Watch(pid) as memory:
                began = time.monotonic()
                answers = asyncio.run(replay(_url(command), dict(command.names), sessions, SECONDS + DRAIN_S))
                result = score(answers, time.monotonic() - began)
            runs.append({"load": load, "machine": busy, "mib": memory.peak_mib, **result.as_json()})
            _say(load, result, memory.peak_mib, busy, answers)
    return {
        "system": system.name,
        "settings": system.settings,
        "loses": system.loses,
        "first_answer": first,
        "runs": runs,
    }


@contextmanager
def _running(command: Command, log: Path) -> Iterator[int]:
    with log.open("wb") as file:
        environment = os.environ | dict(command.environment)
        process = subprocess.Popen(command.argv, stdout=file, stderr=file, env=environment, start_new_session=True)
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _started(command: Command, log: Path) -> str:
    """The text that a model says to a fixed prompt, which shows whose weights it has."""
    try:
        return asyncio.run(_first_answer(command))
    except RuntimeError as error:
        said = "\n".join(log.read_text("utf-8", "replace").splitlines()[-_LAST_LINES:])
        raise RuntimeError(f"{error}; its last lines:\n{said}") from error


async def _first_answer(command: Command) -> str:
    deadline = time.monotonic() + _START_S
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_START_S)) as session:
        while True:
            answer = Answer(NAMES[0])
            await ask(session, _url(command), command.names[NAMES[0]], "the file name value return object", answer)
            if answer.ended:
                return answer.text
            if time.monotonic() > deadline:
                raise RuntimeError(f"no answer after {_START_S:g} s: {answer.error}")
            await asyncio.sleep(0.5)


def _url(command: Command) -> str:
    return f"http://127.0.0.1:{command.port}"


def _say(load: float, result: Score, mib: float, busy: float, answers: Sequence[Answer]) -> None:
    p50, p99 = (f"{at:.2f} s" if at is not None else "never" for at in (result.ttft_p50_s, result.ttft_p99_s))
    print(
        f"   {load:g}/s: {100 * result.on_time:.1f} % of tokens on time, TTFT p50 {p50}, p99 {p99}, "
        f"{result.tokens_per_s:.1f} tokens/s, {result.failed} failed, {result.unfinished} unfinished "
        f"of {len(answers)}, {mib:.0f} MiB; load of the machine {busy:.1f}",
        flush=True,
    )
    for error in sorted({answer.error for answer in answers if answer.error})[:2]:
        print(f"      {error}", flush=True)


if __name__ == "__main__":
    main()
