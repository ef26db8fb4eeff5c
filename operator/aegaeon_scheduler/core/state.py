"""The core's rows: models, instances, sequences and the commands that are out. Mutable, slotted, owned by `Pool`.

Everything a report touches is reached from its instance or sequence; nothing here is ever scanned on a report.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any

from aegaeon_scheduler.core.book import Book, Grant
from aegaeon_scheduler.core.commands import Body
from aegaeon_scheduler.core.domain import (
    CommandId,
    Footprint,
    Held,
    InstanceId,
    ModelConfig,
    ModelName,
    Phase,
    Place,
    SeqId,
)
from aegaeon_scheduler.core.events import InstanceUp, Submitted


class Stage(Enum):
    """Where a sequence is in its life."""

    QUEUED = "queued"
    PREFILL = "prefill"
    HANDOFF = "hand-off"
    DECODE = "decode"
    LOST = "lost"


class Model:
    """One model of the catalog and its counters."""

    __slots__ = (
        "asked_at", "behind", "busy_s", "config", "ended", "failed", "footprint", "loads", "name", "on_time",
        "output_tokens", "poisoned", "policy", "queued", "running", "stall_s", "switch_s", "waiting", "withdrawn",
    )  # fmt: skip

    def __init__(self, config: ModelConfig, now: float) -> None:
        self.name = config.name
        self.config = config
        self.asked_at = now  # seconds; its last request, or when it came
        self.behind = 0.0  # seconds that a policy puts it later than its deadlines say; see slack.shares
        self.footprint: Footprint | None = None
        self.waiting: dict[SeqId, Sequence] = {}  # no instance has the model yet
        self.failed: dict[InstanceId, str] = {}
        self.withdrawn = False
        self.policy: Any = None
        self.queued = self.running = self.ended = self.loads = 0
        self.poisoned = 0  # sequences that ended because no engine could go on with them
        self.output_tokens = self.on_time = 0
        self.busy_s = self.stall_s = self.switch_s = 0.0

    @property
    def fp(self) -> Footprint:
        """The footprint of a model that some instance has cached."""
        assert self.footprint is not None
        return self.footprint


class Stay:
    """Slabs with the weights of one content; free when the last of `members`, who show them, has gone.

    `booked`: a report told of them, so the book knows what they are taken for. `broken`: a load into them failed.
    """

    __slots__ = ("booked", "broken", "members", "slabs")

    def __init__(self, slabs: int) -> None:
        self.slabs = slabs
        self.members: list[Weights] = []
        self.booked = self.broken = False


class Weights:
    """A model that is resident on an instance or on its way. `unload` is set once it is to go, giving `gives` slabs."""

    __slots__ = ("gives", "last_turn", "load", "model", "ready", "stay", "turns", "unload", "used")

    def __init__(self, model: Model, stay: Stay, load: CommandId | None) -> None:
        self.model = model
        self.stay = stay
        stay.members.append(self)
        self.gives = 0
        self.load = load
        self.ready = load is None
        self.unload: CommandId | None = None
        self.turns = 0
        self.last_turn: CommandId | None = None
        self.used = 0

    @property
    def slabs(self) -> int:
        """Where its weights lie, whoever else shows them."""
        return self.stay.slabs


class Issued(Grant):
    """A command with a lane that is out, with what it was granted."""

    __slots__ = ("alone", "body", "members", "model", "prefills", "seq", "steps", "steps_done", "tag", "weights")

    def __init__(self, id: CommandId, body: Body, model: Model | None, seq: Sequence | None) -> None:
        super().__init__(id)
        self.body = body
        self.model = model
        self.seq = seq
        self.members: dict[SeqId, Sequence] = {}
        self.prefills: tuple[Sequence, ...] = ()
        self.alone = False  # a suspect's: nothing joins it, and nothing is queued behind it
        self.steps = 0
        self.steps_done = 0
        self.tag: Any = None
        self.weights: Weights | None = None


class Sequence:
    """One choice of one request.

    `home` is the instance that it runs or will run on, `opened` whether that was told; `source` still owns a copy on
    its host tier (hand-off). `planned_kv` is what its KV will be when all turns that are out have run. What its engine
    reports is true of it from epoch `since` on: a gateway that came back raised the epoch of what went on running.
    """

    __slots__ = (
        "arrival", "copy", "copying_out", "epoch", "failures", "gateway", "gave_way", "handle_of", "held_until", "home",
        "hungry", "id", "kv_tokens", "max_tokens", "model", "open_id", "opened", "order", "output_tokens", "place",
        "planned_kv", "policy", "prefix_tokens", "prompt_tokens", "since", "source", "stage", "starved", "suspected",
        "turns",
    )  # fmt: skip

    def __init__(self, event: Submitted, model: Model, order: int) -> None:
        self.id = event.seq
        self.model = model
        self.order = order
        self.failures = 0  # in a row: progress clears it of them, and of suspicion
        self.suspected = 0  # of these, how often it ran when an engine died or a turn failed
        self.home: Instance | None = None
        self.source: Instance | None = None
        self.stage = Stage.QUEUED
        self.policy: Any = None
        self.held_until = 0.0
        self.gave_way: tuple[Instance, int] | None = None  # where it was given up for others, and how many had ended
        self.open_id: CommandId | None = None
        self.restart(event)

    def restart(self, event: Submitted) -> None:
        """Take what the gateway says as the truth; nothing is placed anywhere."""
        self.epoch = self.since = event.epoch
        self.gateway = event.gateway
        self.arrival = event.arrival
        self.prompt_tokens = event.prompt_tokens
        self.prefix_tokens = event.prefix_tokens
        self.max_tokens = event.max_tokens
        self.output_tokens = event.prefix_tokens
        self.displace()

    def displace(self) -> None:
        """No instance holds anything of it."""
        self.home = self.source = None
        self.opened = False
        self.place = Place.NONE
        self.kv_tokens = self.planned_kv = 0
        self.output_tokens = self.prefix_tokens
        self.copy: CommandId | None = None
        self.copying_out = False
        self.handle_of: CommandId | None = None
        self.turns: list[CommandId] = []
        self.starved = False
        self.hungry = 0  # turns in a row that brought it nothing

    def deadline(self) -> float:
        """When its next token is due, on the scheduler's clock."""
        slo = self.model.config.slo
        return self.arrival + slo.ttft_s + self.output_tokens * slo.tbt_s


class Instance:
    """One attached sidecar: facts from its reports, and its program so far."""

    __slots__ = (
        "book", "busy_s", "commands", "contents", "count", "device", "draining", "ended", "failures", "held",
        "host_slabs", "id", "incarnation", "incoming", "loads", "max_batch", "memory_due", "next_id", "node", "opens",
        "order", "outs", "phases", "policy", "reason", "reported", "role", "running", "sequences", "shared",
        "slab_bytes", "slabs", "stall_s", "stays", "stranded", "stuck", "switch_s", "switches", "turns", "wanted",
        "weights",
    )  # fmt: skip

    def __init__(self, event: InstanceUp, order: int) -> None:
        self.id = event.instance
        self.order = order
        self.next_id = 1
        self.switches = self.loads = 0
        self.ended = 0  # sequences that ended here, and left room for good
        self.busy_s = self.stall_s = self.switch_s = 0.0
        self.policy: Any = None
        self.phases: dict[ModelName, Phase] = {}
        self.attach(event)

    def attach(self, event: InstanceUp) -> None:
        """A fresh attachment: nothing is out, memory is as reported."""
        self.incarnation = event.incarnation
        self.node = event.node
        self.role = event.role
        self.device = event.device
        self.slab_bytes = event.slab_bytes
        self.slabs = event.slabs
        self.host_slabs = event.host_slabs
        self.max_batch = max(1, event.max_batch)
        self.book = Book(event.slabs, event.slab_bytes, event.memory)
        self.weights: dict[ModelName, Weights] = {}
        self.contents: dict[ModelName, str] = {}  # hashes of weights, as this instance knows them
        self.reported = list(event.resident)  # resident before this attachment, size still unknown
        self.shared = dict(event.twins)  # of these, the name that they share slabs under
        self.stays: dict[ModelName, Stay] = {}  # by that name
        self.commands: dict[CommandId, Issued] = {}
        self.opens: dict[CommandId, Sequence] = {}
        self.turns: list[Issued] = []
        self.sequences: dict[SeqId, Sequence] = {}  # homed here
        self.outs: deque[Sequence] = deque()  # hand-offs that wait for host room
        self.wanted: dict[ModelName, str] = {}  # models to load ahead of any turn once there is room, and why
        self.incoming: deque[Sequence] = deque()  # sequences to copy in ahead of any turn once there is room
        self.held: dict[SeqId, Held] = {}
        self.failures: dict[ModelName, int] = {}
        self.running: Model | None = None
        self.reason = ""
        self.stuck = False
        self.draining = False  # it is about to end
        self.stranded = False  # it prefills, and nothing on its node decodes, as it does elsewhere
        self.count = 0  # copies and unloads that make room and are out
        self.memory_due = False  # a Close freed memory that no report shows yet

    def has(self, model: Model) -> bool:
        """Whether this model may come here: it is cached, its weights fit the device, and the instance is of use."""
        if self.draining or self.stranded or self.phases.get(model.name) is not Phase.CACHED:
            return False  # `closed` and `cached` in place: a pass over a full pool asks a thousand times
        return model.footprint is None or model.footprint.weight_slabs < self.slabs

    @property
    def closed(self) -> bool:
        """Whether nothing new is to go there."""
        return self.draining or self.stranded

    def cached(self, model: Model) -> bool:
        """Whether its weights are on this instance's node, whatever their size."""
        return self.phases.get(model.name) is Phase.CACHED

    def unloads(self) -> dict[CommandId, int]:
        """Unloads that are out and the slabs that each will give back, but for those that a load counts on already."""
        pledged = self.book.pledged()
        going = ((w.unload, w.gives) for w in self.weights.values())
        return {id: slabs for id, slabs in going if id is not None and id not in pledged}
