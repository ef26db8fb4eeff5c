"""Stage `calibrate`: `aegaeon calibrate` on the pool's models; its file is the device of `simulate` and of the pool."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.manifests import write_manifests
from benchmarks.gpu_day.models import make, shape_of
from benchmarks.gpu_day.stage import ENTRY, begin, parser_of, status
from benchmarks.report import Row

from aegaeon_scheduler.core.domain import Slo


def main() -> int:
    where, figures = begin("calibrate", parser_of(__doc__).parse_args())
    make(where.models, shape_of(where), where.device)
    with tempfile.TemporaryDirectory(dir=where.work) as scratch:
        write_manifests(Path(scratch), where, "unified", Slo(2.0, 0.1))
        given = ["-f", scratch, "--models", str(where.models), "-o", str(where.constants), "--rounds", "3"]
        subprocess.run([sys.executable, "-c", ENTRY, "calibrate", *given], check=True)
    found = json.loads(where.constants.read_text("utf-8"))
    for constants, fits in zip(found["constants"], found["fits"], strict=True):
        figures.add(*_rows(constants, fits))
    stall = found["gpu"]["load_stall_bytes_per_s"]
    figures.add(Row("steps beside a load held up", 1e12 / stall if stall else 0.0, "ms for each of its GB"))
    return status(figures, where.small)


def _rows(constants: dict[str, Any], fits: dict[str, Any]) -> list[Row]:
    name = constants["model"]
    rows = [
        Row(f"{name}: step of 1 x 1024 tokens", 1e3 * (constants["a"] + 1024 * constants["b"] + constants["c"]), "ms"),
        Row(f"{name}: weights in", constants["load_bytes_per_s"] / 1e9, "GB/s"),
        Row(f"{name}: KV out", constants["kv_bytes_per_s"] / 1e9, "GB/s"),
    ]
    return rows + [
        Row(f"{name}: mean error of the fit of {what}", 100 * fit["mean_error"], "%")
        for what, fit in fits.items()
        if isinstance(fit, dict)
    ]


if __name__ == "__main__":
    sys.exit(main())
