"""Stage `test-gpu`: the tests that need a device, counted. A failed one fails the stage, the figures of others stay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.gpu_day.plan import SKIPPED, root
from benchmarks.gpu_day.stage import begin, parser_of
from benchmarks.report import Row

TESTS = ("-m", "pytest", "-v", "-m", "gpu", "-W", "ignore::pytest.PytestConfigWarning", "-p", "no:cacheprovider")
# Side by side, as most of a test is imports and compiling; pytest-benchmark, where it is there, fails beside xdist.
SIDE_BY_SIDE = ("-n", "6", "-p", "no:benchmark") if find_spec("xdist") else ()
# A program of three engines captures a dozen graphs, beside five others on one GPU; reasons are printed at once.
ENDS = ("--timeout", "120", "--maxfail", "3", "-rfEs")


def main() -> int:
    where, figures = begin("test-gpu", parser_of(__doc__).parse_args())
    with tempfile.TemporaryDirectory(dir=where.work) as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, *TESTS, *SIDE_BY_SIDE, *ENDS, f"--junitxml={report}", "tests/gpu"]
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(root() / "tests"), str(root())])
        code = subprocess.run(command, cwd=root(), env=os.environ | {"PYTHONPATH": path}, check=False).returncode
        suite = next(ElementTree.parse(report).iter("testsuite"))  # written by the line above
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    wrong = counts["failures"] + counts["errors"]
    passed = counts["tests"] - wrong - counts["skipped"]
    figures.add(
        Row("tests that passed", passed, "tests"),
        Row("tests that failed", wrong, "tests", 0, "<="),
        Row("tests that were skipped", counts["skipped"], "tests"),
    )
    if code == 0 and not passed:
        return SKIPPED
    return code


if __name__ == "__main__":
    sys.exit(main())
