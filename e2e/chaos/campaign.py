"""One fault after the other under load, each healed whatever happens, until the time is over or a pool stays broken."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from e2e.chaos.errors import ChaosError, MissedError
from e2e.chaos.faults import KINDS, MAINTAINED, Kind
from e2e.chaos.schedule import Drawn, draw
from e2e.chaos.view import UNREACHABLE
from e2e.chaos.world import World
from e2e.cluster.errors import ClusterError

# So many may recover at the same time.
_AT_ONCE = 2
_EVERY_S = 0.3
# Faults that are reported with a failed request.
_SHOWN = 6


@dataclass
class Struck:
    """A fault that was injected. Times are seconds since the campaign began; None: not (yet)."""

    number: int
    kind: str
    group: str
    target: str
    at_s: float
    healed_s: float = 0.0
    first_answer_s: float | None = None  # from its injection to the first token of a request of later
    recovery_s: float | None = None  # from its healing to a pool that is whole and answers at all gateways
    last_sent_s: float | None = None  # from a node's cut to the last request sent to a gateway there
    untrue_s: float = 0.0  # the longest time since its injection of Ready=True without an answer
    failed: int = 0  # requests since, at gateways that were not killed
    excused: int = 0  # requests that failed since, at those that were

    @property
    def line(self) -> str:
        lasted = f"{self.healed_s - self.at_s:.1f} s" if self.healed_s else "not healed"
        parts = [f"#{self.number:03d} {self.at_s:7.1f} s  {self.kind} ({self.target}): {lasted}"]
        parts += [f"answers after {self.first_answer_s:.1f} s"] if self.first_answer_s is not None else []
        parts += [f"whole {self.recovery_s:.1f} s later"] if self.recovery_s is not None else []
        parts += [f"last request to the cut node {self.last_sent_s:.1f} s"] if self.last_sent_s is not None else []
        if self.recovery_s is not None:
            parts += [f"Ready without an answer {self.untrue_s:.1f} s", f"failed {self.failed}, {self.excused} excused"]
        return ", ".join(parts)


@dataclass
class Campaign:
    """What was done, and what was seen of it. `stuck`: why it ended early; `record`: the folder of what is written."""

    world: World
    seed: int
    record: Path
    began: float = field(default_factory=time.monotonic)
    struck: list[Struck] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    stuck: str = ""
    seconds: float = 0.0
    _recovering: list[tuple[Struck, Kind]] = field(default_factory=list)

    def run(self, weights: Mapping[str, int], minutes: float, faults: int | None = None) -> None:
        """Faults as the seed says, until the minutes, or so many faults, are over."""
        deadline = self.began + 60 * minutes
        try:
            for drawn in draw(self.seed, weights):
                if time.monotonic() > deadline or drawn.number > (faults or drawn.number):
                    break
                self._strike(drawn)
            self._recover()
        except ChaosError as error:
            self.stuck = f"{error}\nbefore:\n" + self._before()
            self._tell(f"STUCK: {self.stuck}")
        finally:
            self.seconds = time.monotonic() - self.began

    def each(self, kinds: Iterable[str]) -> None:
        """Each kind once, alone."""
        for number, name in enumerate(kinds, 1):
            try:
                self._strike(Drawn(number, name, 0.5, 0.5, 1.0, overlaps=False))
            except ChaosError as error:
                self._tell(f"STUCK: {error}")
                self.stuck += f"{name}: {error}\n"
                self._recovering.clear()
        self.seconds = time.monotonic() - self.began

    def look(self) -> None:
        """Collect what clients observed since the last poll; violations are reported at once."""
        world = self.world
        for sentence in world.verdict.look(world.load.by_url, world.gateways):
            self._tell(f"seed {self.seed}: {sentence}\nbefore:\n{self._before()}")

    def _strike(self, drawn: Drawn) -> None:
        kind = KINDS[drawn.kind]
        struck = Struck(drawn.number, kind.name, kind.group, "", self._now())
        self.struck.append(struck)
        try:
            self._inject(kind, drawn, struck)
        except (MissedError, ClusterError, *UNREACHABLE) as error:
            if struck.target:
                raise ChaosError(f"{kind.name} could not be healed: {error}") from error
            self.struck.remove(struck)
            self.missed.append(f"{kind.name}: {error}")
            self._tell(f"#{drawn.number:03d} {kind.name} was not injected: {error}")
            self._recover()
            return
        self._recovering.append((struck, kind))
        if not (drawn.overlaps and kind.overlaps and len(self._recovering) < _AT_ONCE):
            self._recover()
        time.sleep(drawn.pause_s)  # part of the schedule: faults arrive at random times, no event announces the next

    def _inject(self, kind: Kind, drawn: Drawn, struck: Struck) -> None:
        with kind.inject(self.world, drawn) as target:
            struck.target = target
            if kind.prepared:
                struck.at_s = self._now()
            time.sleep(drawn.between(*kind.lasts_s))  # so long it lasts, whatever happens
        struck.healed_s = self._now()
        if kind.group == MAINTAINED:
            struck.last_sent_s = self.world.late_connects[-1]

    def _recover(self) -> None:
        """Until the pool is whole, and each gateway and each model answers. Raises ChaosError."""
        patience_s = max((kind.recovery_s for _, kind in self._recovering), default=KINDS["kill engine"].recovery_s)
        whole = self._wait_until_whole(patience_s)
        self.world.gateways.recovered()
        self.look()
        for struck, _ in self._recovering:
            self._measure(struck, whole)
            self._tell(struck.line)
            self._write(struck)
        self._recovering.clear()

    def _measure(self, struck: Struck, recovered: float) -> None:
        """`recovered`: when the pool was whole again (monotonic)."""
        at = self.began + struck.at_s
        struck.first_answer_s = self.world.first_token(at) - at
        struck.recovery_s = max(0.0, recovered - self.began - struck.healed_s)
        struck.untrue_s = self.world.untrue_s(at)
        struck.failed, struck.excused = self.world.verdict.failed_since(at)

    def _wait_until_whole(self, patience_s: float) -> float:
        """When it was (monotonic). A pod may be ready, and gone again a moment later: then all begins anew."""
        deadline = time.monotonic() + patience_s
        since: float | None = None
        while True:
            missing = self.world.missing()
            since = None if missing else since or time.monotonic()
            if since and (answered := self.world.answered(since)) < float("inf"):
                return answered
            if time.monotonic() > deadline:
                what = missing or "a gateway or a model does not answer"
                raise ChaosError(f"not whole after {patience_s:g} s: {what}\n{self.world.describe()}")
            time.sleep(_EVERY_S)  # nothing to wait on: what is polled is a client's view

    def _before(self) -> str:
        return "\n".join(one.line for one in self.struck[-_SHOWN:])

    def _now(self) -> float:
        return time.monotonic() - self.began

    def _tell(self, line: str) -> None:
        print(line, flush=True)
        with (self.record / "campaign.log").open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {line}\n")

    def _write(self, struck: Struck) -> None:
        with (self.record / "faults.jsonl").open("a", encoding="utf-8") as faults:
            faults.write(json.dumps(asdict(struck)) + "\n")
