"""Stage `sanitizer`: the memory tests under compute-sanitizer, which finds what a kernel or a copy touches wrongly."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_day.plan import SKIPPED, root
from benchmarks.gpu_day.stage import begin, parser_of, status
from benchmarks.gpu_day.tests import TESTS
from benchmarks.report import Row

_PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/opt/nvidia/compute-sanitizer/compute-sanitizer")
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")


def main() -> int:
    where, figures = begin("sanitizer", parser_of(__doc__).parse_args())
    tool = shutil.which("compute-sanitizer") or next((place for place in _PLACES if Path(place).exists()), None)
    if tool is None or where.device == "cpu":
        print("skipped: " + ("no compute-sanitizer is here" if tool is None else "it needs a GPU"))
        return SKIPPED
    command = [tool, "--target-processes", "application-only", "--launch-timeout", "60", sys.executable, *TESTS]
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(root() / "tests"), str(root())])
    ran = subprocess.run(
        [*command, "tests/gpu/test_memory.py"],
        cwd=root(),
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(ran.stdout, flush=True)
    found = _SUMMARY.findall(ran.stdout)
    if not found:
        return 1
    figures.add(Row("errors that compute-sanitizer found in the memory tests", float(found[-1]), "errors", 0, "<="))
    return ran.returncode or status(figures, where.small)


if __name__ == "__main__":
    sys.exit(main())
