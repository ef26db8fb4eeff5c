"""The core's rows: models, instances, sequences and in-flight commands. Mutable, owned by `Pool`, equal by identity.

Everything a report touches is reached from its instance or sequence; nothing here is ever scanned on a report.
"""

from __future__ import annotations

from collections import deque
from dataclasses import InitVar, dataclass, field

from aegaeon_scheduler.core.batch import Batch, Row
from aegaeon_scheduler.core.book import Book, Grant
from aegaeon_scheduler.core.commands import Body
from aegaeon_scheduler.core.domain import (
    CommandId,
    Footprint,
    Held,
    InstanceId,
    Lacking,
    ModelConfig,
    ModelName,
    Phase,
    Place,
    SeqId,
    Stage,
)
from aegaeon_scheduler.core.events import InstanceUp, Submitted
from aegaeon_scheduler.core.facts import Attachment, ModelCounters, Request
from aegaeon_scheduler.core.phases import PHASE_CACHED, PLACE_HOST, PLACE_NONE, ROLE_PREFILL, STAGE_QUEUED


@dataclass(slots=True, eq=False, repr=False)
class Model(ModelCounters):
    """One model of the catalog and its counters."""

    config: ModelConfig
    asked_at: float  # seconds; its last request, or when it came
    name: ModelName = field(init=False)
    footprint: Footprint | None = None
    pools: bool = False  # it generates nothing, as far as instances reported
    waiting: dict[SeqId, Sequence] = field(default_factory=dict)  # no instance has the model yet
    failed: dict[InstanceId, str] = field(default_factory=dict)
    without: Lacking = field(default_factory=dict)  # adapters that cannot be served there; see adapters.py
    cached: dict[InstanceId, Instance] = field(default_factory=dict)  # on whose nodes its weights are
    holders: dict[InstanceId, Instance] = field(default_factory=dict)  # whose `weights` have it; see shared_weights.py
    expected_by: float = 0.0  # until when a fetch of it may be waited for; see fetches.py
    withdrawn: bool = False
    # Incarnations of instances that were lost in a turn that warmed it up: there are no more of these.
    died_warming_up: dict[InstanceId, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = self.config.name

    @property
    def fp(self) -> Footprint:
        """The footprint of a model that some instance has cached."""
        assert self.footprint is not None
        return self.footprint

    def measured(self, footprint: Footprint) -> None:
        """An instance has reported its size and its task."""
        self.footprint, self.pools = footprint, footprint.pools


@dataclass(slots=True, eq=False, repr=False)
class SharedWeights:
    """Slabs with the weights of one content; free when the last of `members`, who show them, has gone.

    `booked`: a report counted them, so the book knows what they are taken for. `broken`: a load into them failed.
    """

    slabs: int
    members: list[Weights] = field(default_factory=list)
    booked: bool = False
    broken: bool = False


@dataclass(slots=True, eq=False, repr=False)
class Weights:
    """A model that is resident on an instance or on its way. `unload` is set once it is to go, giving `gives` slabs."""

    model: Model
    shared: SharedWeights
    load: CommandId | None
    ready: bool = field(init=False)
    gives: int = 0
    unload: CommandId | None = None
    turns: int = 0
    last_turn: CommandId | None = None
    used: int = 0

    def __post_init__(self) -> None:
        self.shared.members.append(self)
        self.ready = self.load is None

    @property
    def slabs(self) -> int:
        """Slabs of its weights, shared with other names of the same content or not."""
        return self.shared.slabs


@dataclass(slots=True, eq=False, repr=False, init=False)
class Issued(Grant):
    """An in-flight command with a lane, and what it was granted. `batch`: that of a turn, where its policy has them."""

    body: Body
    model: Model | None
    seq: Sequence | None
    members: dict[SeqId, Sequence]
    prefills: tuple[Sequence, ...]
    alone: bool  # a suspect's: nothing joins it, and nothing is queued behind it
    steps: int
    steps_done: int
    shortened: bool  # it was to have more steps
    dropped: bool  # it is to end before it begins: it takes no place on the lane
    warm_up: bool  # a turn of no sequence
    batch: Batch | None
    weights: Weights | None

    def __init__(self, id: CommandId, body: Body, model: Model | None, seq: Sequence | None) -> None:
        Grant.__init__(self, id)  # slots=True makes another class of this one, which super() does not know
        self.body, self.model, self.seq = body, model, seq
        self.members = {}
        self.prefills = ()
        self.alone = self.shortened = self.dropped = self.warm_up = False
        self.steps = self.steps_done = 0
        self.batch = self.weights = None


@dataclass(slots=True, eq=False, repr=False)
class Sequence(Request):
    """One choice of one request.

    `home` is the instance that it runs or will run on, `opened` whether an Open was sent there; `source` still owns a
    copy on its host tier (hand-off). `projected_kv` is its KV after all in-flight turns. What its engine reports is
    true of it from epoch `since` on: a gateway that came back raised the epoch of what went on running.
    """

    event: InitVar[Submitted]
    model: Model
    order: int
    id: SeqId = field(init=False)
    stage: Stage = STAGE_QUEUED
    failures: int = 0  # in a row: progress clears it of them, and of suspicion
    suspected: int = 0  # of these, how often it ran when an engine died or a turn failed
    held_until: float = 0.0
    preempted_at: tuple[Instance, int] | None = None  # where it was given up for others, and how many had ended
    open_id: CommandId | None = None
    batch: Batch | None = None  # set by the policy, as is `row`
    row: Row | None = None
    output_tokens: int = field(init=False)
    home: Instance | None = field(init=False)
    source: Instance | None = field(init=False)
    opened: bool = field(init=False)
    place: Place = field(init=False)
    kv_tokens: int = field(init=False)
    projected_kv: int = field(init=False)
    copy: CommandId | None = field(init=False)
    copying_out: bool = field(init=False)
    handle_of: CommandId | None = field(init=False)
    turns: list[CommandId] = field(init=False)
    prefilled: bool = field(init=False)  # its prompt is in, and a token of it came out
    starved: bool = field(init=False)
    hungry: int = field(init=False)  # turns in a row that brought it nothing
    admitted: bool = field(default=False, init=False)  # it is with the policy, see cache_admission.py
    # Leading tokens of its prompt that engines are expected to have, as it came; see prefix.py.
    cached: dict[InstanceId, int] = field(default_factory=dict)

    def __post_init__(self, event: Submitted) -> None:
        self.id = event.seq
        self.restart(event)

    def restart(self, event: Submitted) -> None:
        """Take what the gateway says as the truth; nothing is placed anywhere."""
        self.submit(event)
        self.displace()

    def displace(self) -> None:
        """No instance holds anything of it."""
        self.home = self.source = None
        self.opened = False
        self.place = PLACE_NONE
        self.kv_tokens = self.projected_kv = 0
        self.output_tokens = self.prefix_tokens
        self.copy = self.handle_of = None
        self.copying_out = self.prefilled = self.starved = False
        self.turns = []
        self.hungry = 0
        self.admitted = False
        self.cached = {}

    @property
    def away(self) -> bool:
        """Its KV is on a host tier, here or where it comes from, and no copy of it is under way."""
        return self.copy is None and (self.place is PLACE_HOST or self.source is not None)

    @property
    def unissued_tokens(self) -> int:
        """Tokens of prompt and prefix that neither have their KV in nor are in an in-flight turn."""
        return self.prompt_tokens + self.prefix_tokens - self.projected_kv

    def cached_on(self, inst: Instance) -> int:
        """Tokens of a prompt that is not begun which an instance is expected to find in its prefix cache."""
        return self.cached.get(inst.id, 0) if self.cached and not self.projected_kv else 0

    def to_compute(self, inst: Instance) -> tuple[int, int]:
        """Tokens of prompt and prefix that an instance will not have to compute, and those behind them that it will."""
        cached = self.cached_on(inst)
        return self.projected_kv + cached, self.unissued_tokens - cached

    def project(self, kv_tokens: int) -> None:
        """Its KV after all in-flight turns."""
        if kv_tokens != self.projected_kv:
            self.projected_kv = kv_tokens
            if self.batch is not None:
                self.batch.changed()

    def output(self, tokens: int) -> None:
        """Set the number of output tokens."""
        self.output_tokens = tokens
        if self.batch is not None and self.projected_kv < self.prompt_tokens + self.prefix_tokens:
            self.batch.changed()  # else the next one is due by its KV

    def deadline(self) -> float:
        """When its next token is due, on the scheduler's clock."""
        slo = self.model.config.slo
        return self.promised_from + slo.ttft_s + self.output_tokens * slo.tbt_s


@dataclass(slots=True, eq=False, repr=False)
class Instance(Attachment):
    """One attachment of a sidecar: facts from its reports, and its program so far."""

    event: InitVar[InstanceUp]
    order: int
    book: Book = field(init=False)
    reported: list[ModelName] = field(init=False)  # resident before this attachment, size still unknown
    shared: dict[ModelName, ModelName] = field(init=False)  # of these, the name that they share slabs under
    next_id: int = 1
    phases: dict[ModelName, Phase] = field(default_factory=dict)
    without: dict[ModelName, dict[str, str]] = field(default_factory=dict)  # adapters that failed here, and why
    weights: dict[ModelName, Weights] = field(default_factory=dict)
    contents: dict[ModelName, str] = field(default_factory=dict)  # hashes of weights, as this instance knows them
    shared_weights: dict[ModelName, SharedWeights] = field(default_factory=dict)  # by the name of `shared`
    commands: dict[CommandId, Issued] = field(default_factory=dict)
    opens: dict[CommandId, Sequence] = field(default_factory=dict)
    turns: list[Issued] = field(default_factory=list)
    sequences: dict[SeqId, Sequence] = field(default_factory=dict)  # homed here
    newcomer: Sequence | None = None  # the last that came, until its place on the lane is settled
    outs: deque[Sequence] = field(default_factory=deque)  # hand-offs that wait for host room
    wanted: dict[ModelName, str] = field(default_factory=dict)  # to load ahead of turns once there is room, and why
    incoming: deque[Sequence] = field(default_factory=deque)  # to copy in ahead of turns once there is room
    held: dict[SeqId, Held] = field(default_factory=dict)
    tried: set[ModelName] = field(default_factory=set)  # models that had a turn here, or were resident as it attached
    decoded: set[ModelName] = field(default_factory=set)  # of these: first steps with more rows are no first decode
    cold: set[ModelName] = field(default_factory=set)  # models of which a turn may warm up
    failures: dict[ModelName, int] = field(default_factory=dict)
    running: Model | None = None
    moved_at: float = 0.0  # when its first turn became the first, got what it waited for, or was last reported
    reason: str = ""
    stuck: bool = False
    draining: bool = False  # it is about to end
    # Within reach: of one that prefills, those that decode; of the others, those that prefill. See nodes.py.
    partners: list[Instance] = field(default_factory=list)
    count: int = 0  # in-flight copies and unloads that make room
    memory_due: bool = False  # a Close freed memory that no report shows yet

    def __post_init__(self, event: InstanceUp) -> None:
        self.attach(event)
        self.book = Book(event.slabs, event.slab_bytes, event.memory)
        self.reported = list(event.resident)
        self.tried.update(event.resident)
        self.decoded.update(event.resident)
        self.shared = dict(event.twins)

    def has(self, model: Model) -> bool:
        """True when this model may be placed here: cached, its weights fit the device, the instance is usable."""
        if self.draining or self.id not in model.cached:
            return False
        if self.role is ROLE_PREFILL and not self.hands_over(model):
            return False
        return model.footprint is None or model.footprint.weight_slabs < self.slabs

    def hands_over(self, model: Model) -> bool:
        """True when prompts of a model computed here are decoded: here, by an engine within reach, or not at all."""
        if self.role is not ROLE_PREFILL or model.pools:
            return True
        return any(not other.draining and other.id in model.cached for other in self.partners)

    def lacks(self, seq: Sequence) -> bool:
        """True when its adapter cannot be served here, although its model may be."""
        return bool(seq.model.without) and seq.adapter in seq.model.without.get(self.id, ())

    def takes(self, seq: Sequence) -> bool:
        """True when it may be placed here: its model may, and its adapter is served here."""
        return self.has(seq.model) and not self.lacks(seq)

    @property
    def lane_length(self) -> int:
        """Turns on its compute lane."""
        length = len(self.turns)
        for turn in self.turns:
            length -= turn.dropped
        return length

    def enter(self, model: Model, phase: Phase) -> None:
        """A model is so far here."""
        self.phases[model.name] = phase
        if phase is PHASE_CACHED:
            model.cached[self.id] = self
        else:
            model.cached.pop(self.id, None)

    def leave(self, model: Model) -> None:
        """Nothing is known of a model here."""
        self.phases.pop(model.name, None)
        self.failures.pop(model.name, None)
        for names in (self.cold, self.tried, self.decoded):
            names.discard(model.name)
        model.cached.pop(self.id, None)
