"""What a running pool answered, kept for the stages behind it: `verify` and `simulate`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpu_day.manifests import Roles
from benchmarks.truth_stack import Alone, Reply

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.workload import Arrival, Workload


@dataclass(frozen=True, slots=True)
class Answers:
    """What `simulate` and `verify` read. `alone`: by model, empty where it was not measured."""

    roles: Roles
    slo: Slo
    workload: Workload
    replies: list[Reply]
    switches: int
    alone: dict[str, Alone]

    def write(self, file: Path) -> None:
        """As JSON."""
        file.write_text(json.dumps(asdict(self)) + "\n", "utf-8")


def read_answers(file: Path) -> Answers:
    """Of an earlier stage. Raises OSError when it left none."""
    found = json.loads(file.read_text("utf-8"))
    arrivals = tuple(Arrival(**arrival) for arrival in found["workload"]["arrivals"])
    return Answers(
        found["roles"],
        Slo(**found["slo"]),
        Workload(tuple(found["workload"]["kinds"]), arrivals, tuple(found["workload"]["given_names"])),
        [Reply(**reply) for reply in found["replies"]],
        found["switches"],
        {name: Alone(**alone) for name, alone in found["alone"].items()},
    )
