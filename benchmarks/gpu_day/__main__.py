"""`python -m benchmarks.gpu_day` (`make gpu-day`): run the plan, or what an earlier call left of it.

Exit status: 0 when all stages are over and none failed, 1 when some failed, 75 when time ran out before the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from benchmarks.gpu_day.plan import SKIPPED, Stage, chosen, python, root, stages
from benchmarks.gpu_day.state import Outcome, State
from benchmarks.gpu_day.summary import read_figures, write_summary
from benchmarks.gpu_day.where import Where, add_where, read_where
from benchmarks.report import BARS_MISSED

NOT_ALL = 75
_GRACE_S = 5.0  # between SIGTERM and SIGKILL
_LEAST_S = 10.0  # a stage is not begun with less
_OUTCOMES: dict[int, Outcome] = {0: "finished", BARS_MISSED: "bars missed", SKIPPED: "skipped"}


def main() -> int:
    arguments = _arguments()
    where = read_where(arguments)
    if arguments.before is not None:
        _take_over(arguments.before, where.out)
    state, ends = State(where.out / "state.json"), time.monotonic() + arguments.budget
    for stage in chosen(stages(where), arguments.only):
        if state.is_over(stage.name, arguments.again):
            continue
        left_s = ends - time.monotonic()
        if left_s < max(stage.usual_s, _LEAST_S):
            print(f"{stage.name}: {left_s:.0f} s left, it needs {stage.usual_s:.0f}; the next call begins here")
            return NOT_ALL
        _run(stage, state, min(stage.limit_s, left_s - _GRACE_S), where)
        write_summary(where, state)
    print((where.out / "report.md").read_text("utf-8") if (where.out / "report.md").exists() else "nothing ran")
    wrong = [n for n, outcome in state.outcomes().items() if outcome in ("failed", "timed out", "running")]
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_where(parser)
    parser.add_argument("--before", type=Path, help="an earlier call's --out, from a machine that is gone")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds of this call")
    parser.add_argument("--only", action="append", help="this stage; repeatable, in this order")
    parser.add_argument("--again", action="store_true", help="also stages that failed")
    return parser.parse_args()


def _take_over(before: Path, out: Path) -> None:
    """Files of an earlier call, unless this folder has its own already."""
    if not (out / "state.json").exists() and before.is_dir():
        for file in before.iterdir():
            shutil.copyfile(file, out / file.name)


def _run(stage: Stage, state: State, limit_s: float, where: Where) -> None:
    """To its end or its limit; what it prints goes to the log and here. One that adds no figure has failed."""
    print(f"\n==== {stage.name} (at most {limit_s:.0f} s)", flush=True)
    state.begin(stage.name)
    began, figures = time.monotonic(), len(read_figures(where))
    process = subprocess.Popen(
        python(stage),
        cwd=root(),
        env=os.environ | dict(stage.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that all of it can be ended
    )
    assert process.stdout is not None
    reader = threading.Thread(target=_copy, args=(process.stdout, where.out / "day.log", stage.name))
    reader.start()
    outcome = _wait(process, limit_s)
    reader.join(_GRACE_S)
    if outcome in ("finished", "bars missed") and len(read_figures(where)) == figures:
        outcome = "failed"
        print(f"{stage.name} added no figure", flush=True)
    state.end(stage.name, outcome, time.monotonic() - began)
    print(f"==== {stage.name}: {outcome} after {time.monotonic() - began:.1f} s", flush=True)


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> Outcome:
    try:
        return _OUTCOMES.get(process.wait(limit_s), "failed")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return "timed out"


def _copy(stream: IO[bytes], log: Path, stage: str) -> None:
    with stream, log.open("ab") as file:
        file.write(f"==== {stage}\n".encode())
        for text in iter(stream.readline, b""):
            file.write(text)
            file.flush()
            sys.stdout.write(text.decode(errors="replace"))
            sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
