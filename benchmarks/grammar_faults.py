"""Processes for grammars that are killed, stopped and filled under a batch, and a grammar that no request waits for.

Each fault hits the process of one of two grammars of a batch: its sequences must end with an error within 5 s, and the
masks of the others must be as they were. `python -m benchmarks.grammar_faults [COUNT]`; of an engine only the parts
run that meet grammars.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import Row, report
from benchmarks.structured import EOS, VOCAB, save_model

from aegaeon_proto.engine.sampling import Constraint, ConstraintKind
from aegaeon_sidecar.sampling import Masker, SamplerState
from aegaeon_sidecar.sampling.grammars import Grammars, Vocabulary

COUNT, ENDS_S, ROWS = 100, 5.0, 4
FILLED_ROWS = 400


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def fill(pid: int) -> None:
    """Its next allocation fails."""
    resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))


FAULTS: tuple[Callable[[int], None], ...] = (kill, stop, fill)


class Bench:
    """Grammars of one tokenizer, and sequences that follow them."""

    def __init__(self, folder: Path) -> None:
        self._vocabulary, self._grammars, self._masker = Vocabulary(folder, VOCAB), Grammars(), Masker()
        self._innocents = self.rows("[0-9]+", ROWS)
        alone = self._masker.masks(self._innocents, VOCAB)
        assert alone is not None
        self._alone = alone.allowed.tobytes()

    def rows(self, regex: str, count: int, share: bytes = b"innocent") -> list[SamplerState]:
        constraint = Constraint(ConstraintKind.REGEX, regex, (EOS,), share=share)
        return [
            SamplerState(guide=self._grammars.guide(self._vocabulary, constraint, lambda: None)) for _ in range(count)
        ]

    def fault(self, number: int) -> tuple[bool, bool, float]:
        """Whether its sequences ended, whether the others are as they were, and after how many seconds."""
        what, regex = FAULTS[number % len(FAULTS)], f"(a|b|[c-f]{{3}}){{{number % 9 + 2},{number + 400}}}"
        victims = self.rows(regex, ROWS, share=b"victim")
        self._masker.masks([*self._innocents, *victims], VOCAB)
        assert victims[0].guide is not None
        what(victims[0].guide.client().pid)
        if what is fill:  # what it has is enough for the sequences that it knows
            victims = self.rows(regex, FILLED_ROWS, share=b"victim")
        begin = time.monotonic()
        masks = self._masker.masks([*self._innocents, *victims], VOCAB)
        seconds = time.monotonic() - begin
        assert masks is not None
        ended = set(masks.refused) == set(range(ROWS, ROWS + len(victims)))
        return ended, masks.allowed[:ROWS].tobytes() == self._alone, seconds

    def abandoned_s(self, number: int) -> float:
        """Processor time that the compilation of a bomb takes after its only sequence has ended."""
        before = forked()
        text = json.dumps({"type": "integer", "multipleOf": 99999999 - number})
        constraint = Constraint(ConstraintKind.JSON_SCHEMA, text, (EOS,), share=b"bomber")
        guide = self._grammars.guide(self._vocabulary, constraint, lambda: None)
        while not (building := [pid for pid in forked() - before if cpu_s(pid) > 0.05]):
            time.sleep(0.005)
        left = last = sum(map(cpu_s, building))
        del guide
        while used := sum(map(cpu_s, building)):
            last = used
            time.sleep(0.005)
        return last - left

    def stop(self) -> None:
        self._grammars.stop()


def cpu_s(pid: int) -> float:
    """Processor time of a process; 0 of one that is no more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields[0] != "Z" else 0.0


def forked() -> set[int]:
    """Processes for grammars, of all programs that hold tokenizers."""
    children = (path for path in Path("/proc/self/task").glob("*/children"))
    programs = {int(pid) for path in children for pid in path.read_text().split()}
    below = (path for pid in programs for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return {int(pid) for path in below for pid in path.read_text().split()}


def main(count: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        bench = Bench(Path(folder))
        faults = [bench.fault(number) for number in range(count)]
        abandoned = [bench.abandoned_s(number) for number in range(5)]
        bench.stop()
    held = sum(ended and same and seconds <= ENDS_S for ended, same, seconds in faults)
    return report(
        "grammar_faults",
        [
            Row(
                f"killed, stopped, filled: its own end within {ENDS_S:g} s, others are the same", held, "", count, ">="
            ),
            Row("slowest end", max(seconds for *_, seconds in faults), "s", ENDS_S, "<="),
            Row("processor time for a grammar after its client left, most of 5", max(abandoned), "s", 1.0, "<="),
        ],
        short=count < COUNT,
    )


if __name__ == "__main__":
    raise SystemExit(0 if main(int(sys.argv[1]) if sys.argv[1:] else COUNT) else 1)
