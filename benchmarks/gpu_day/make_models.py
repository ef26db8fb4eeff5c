"""Stage `models`: make them, and how long that takes."""

from __future__ import annotations

import sys
import time

from benchmarks.gpu_day.models import make, shape_of
from benchmarks.gpu_day.stage import begin, parser_of, status
from benchmarks.report import Row


def main() -> int:
    where, figures = begin("models", parser_of(__doc__).parse_args())
    began = time.monotonic()
    made = make(where.models, shape_of(where), where.device)
    seconds = time.monotonic() - began
    nbytes = sum(file.stat().st_size for file in made["one"].iterdir())
    figures.add(Row("three models made on the device", seconds, "s"), Row("files of one of them", nbytes / 1e9, "GB"))
    return status(figures, where.small)


if __name__ == "__main__":
    sys.exit(main())
