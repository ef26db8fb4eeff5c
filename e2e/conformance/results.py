"""What the suite said, test by test, and whether that is good."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Tests that fail for a reason which is not the picker's. One that passes after all must leave this table.
NOT_OURS = {
    "GatewayWeightedAcrossTwoInferencePools": (
        "Istio's: it asks one pool's picker for the whole route, the second pool's, so requests that the weights send "
        "to the first pool get endpoints which that pool does not have, and 503"
    ),
}
_LINE = re.compile(r"^ {4}--- (PASS|FAIL|SKIP): TestConformance/(\w+) \((\d+\.\d+)s\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Result:
    """Of one test of the suite."""

    test: str
    verdict: str  # PASS, FAIL or SKIP, as Go says it
    seconds: float


def read(output: str) -> list[Result]:
    """From what `-test.v` prints; steps of a test are part of it."""
    return [Result(test, verdict, float(seconds)) for verdict, test, seconds in _LINE.findall(output)]


def problems(results: Sequence[Result]) -> list[str]:
    """Why the run is no success; empty: it is one."""
    if not results:
        return ["no test ran: the suite did not get beyond its own preparation"]
    failed = [f"{one.test} failed" for one in results if one.verdict == "FAIL" and one.test not in NOT_OURS]
    fixed = [f"{one.test} passes: take it out of NOT_OURS" for one in results if _passes_after_all(one)]
    return failed + fixed


def summary(results: Sequence[Result]) -> list[str]:
    """A line for each test, and the last one with the count."""
    lines = [f"{one.verdict}  {one.test:<45} {one.seconds:6.1f} s{_remark(one)}" for one in results]
    count = {verdict: sum(one.verdict == verdict for one in results) for verdict in ("PASS", "FAIL", "SKIP")}
    skipped = f", {count['SKIP']} skipped" if count["SKIP"] else ""
    return [*lines, f"{count['PASS']} passed, {count['FAIL']} failed{skipped}"]


def _passes_after_all(one: Result) -> bool:
    return one.verdict == "PASS" and one.test in NOT_OURS


def _remark(one: Result) -> str:
    return f"  ({NOT_OURS[one.test]})" if one.verdict == "FAIL" and one.test in NOT_OURS else ""
