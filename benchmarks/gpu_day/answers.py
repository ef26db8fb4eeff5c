"""What a running pool answered, kept for the stages behind it: `verify` and `simulate`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.manifests import Roles
from benchmarks.truth_stack import Alone, Reply

from aegaeon_scheduler.core.domain import Slo, Terms, Tier
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
        file.write_text(json.dumps(asdict(self), default=attrgetter("value")) + "\n", "utf-8")


def read_answers(file: Path) -> Answers:
    """Read the answers of an earlier stage. Raises OSError when it left none."""
    found = json.loads(file.read_text("utf-8"))
    arrivals = tuple(map(_arrival, found["workload"]["arrivals"]))
    return Answers(
        found["roles"],
        Slo(**found["slo"]),
        Workload(tuple(found["workload"]["kinds"]), arrivals, tuple(found["workload"]["given_names"])),
        [Reply(**reply) for reply in found["replies"]],
        found["switches"],
        {name: Alone(**alone) for name, alone in found["alone"].items()},
    )


def _arrival(entry: dict[str, Any]) -> Arrival:
    """Read a request; older records have no terms."""
    terms = entry.get("terms", {})
    tier = Tier(terms.get("tier", Tier.STANDARD))
    return Arrival(**entry | {"terms": Terms(tier, terms.get("weight", 1))})
