"""Facts of the core's rows that come from one event each, and their counters: a row inherits them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from math import inf

from aegaeon_scheduler.core.domain import GatewayId, InstanceId, Role, Terms
from aegaeon_scheduler.core.events import InstanceUp, Submitted


@dataclass(slots=True, eq=False, repr=False)
class ModelCounters:
    """Counters of a model since it came into the catalog."""

    queued: int = field(default=0, init=False)
    running: int = field(default=0, init=False)
    ended: int = field(default=0, init=False)
    loads: int = field(default=0, init=False)
    poisoned: int = field(default=0, init=False)  # sequences that ended because no engine could go on with them
    output_tokens: int = field(default=0, init=False)
    on_time: int = field(default=0, init=False)
    worked_at: float = field(default=-inf, init=False)  # when an engine last had a step of its sequences behind it
    answered_at: float = field(default=-inf, init=False)  # when a token of it, or the answer to a request, came last
    busy_s: float = field(default=0.0, init=False)
    stall_s: float = field(default=0.0, init=False)
    switch_s: float = field(default=0.0, init=False)


@dataclass(slots=True, frozen=True, eq=False)
class Make:
    """The properties that decide whether a sequence of some length fits an instance. `make` gives one for all that are
    alike."""

    role: Role
    slab_bytes: int
    slabs: int
    host_slabs: int


make = cache(Make)


@dataclass(slots=True, eq=False, repr=False)
class Attachment:
    """Properties of an instance as its sidecar reported them when it attached, and counters over its attachments."""

    id: InstanceId = field(init=False)
    incarnation: str = field(init=False)
    node: str = field(init=False)
    role: Role = field(init=False)
    device: str = field(init=False)
    slab_bytes: int = field(init=False)
    slabs: int = field(init=False)
    host_slabs: int = field(init=False)
    max_batch: int = field(init=False)
    make: Make = field(init=False)
    switches: int = field(default=0, init=False)
    loads: int = field(default=0, init=False)
    ended: int = field(default=0, init=False)  # sequences that ended here, and left room for good
    busy_s: float = field(default=0.0, init=False)
    stall_s: float = field(default=0.0, init=False)
    switch_s: float = field(default=0.0, init=False)
    first_s: float = field(default=0.0, init=False)  # of busy_s: first steps of models
    ahead_s: float = field(default=0.0, init=False)  # of first_s: those that no sequence waited for

    def attach(self, event: InstanceUp) -> None:
        """Take them from the event."""
        self.id = event.instance
        self.incarnation = event.incarnation
        self.node = event.node
        self.role = event.role
        self.device = event.device
        self.slab_bytes = event.slab_bytes
        self.slabs = event.slabs
        self.host_slabs = event.host_slabs
        self.max_batch = max(1, event.max_batch)
        self.make = make(event.role, event.slab_bytes, event.slabs, event.host_slabs)

    def carry_over(self, old: Attachment) -> None:
        """Continue the counters of an earlier attachment."""
        self.switches, self.loads = old.switches, old.loads
        self.busy_s, self.stall_s, self.switch_s = old.busy_s, old.stall_s, old.switch_s
        self.first_s, self.ahead_s = old.first_s, old.ahead_s


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """Properties of a sequence as its gateway submitted it."""

    epoch: int = field(init=False)
    since: int = field(init=False)
    gateway: GatewayId = field(init=False)
    arrival: float = field(init=False)
    promised_from: float = field(init=False)  # its deadlines count from then on
    deferred: bool = field(init=False)  # later than its arrival: what is not deferred comes first
    tenant: str = field(init=False)
    terms: Terms = field(init=False)  # among the requests for its model
    priority: int = field(init=False)
    prompt_tokens: int = field(init=False)
    prefix_tokens: int = field(init=False)
    max_tokens: int = field(init=False)
    adapter: str = field(init=False)
    chain: tuple[int, ...] = field(init=False)

    def submit(self, event: Submitted) -> None:
        """Take them from the event."""
        self.epoch = self.since = event.epoch
        self.gateway = event.gateway
        self.arrival = event.arrival
        self.promised_from = event.arrival + event.defer_s
        self.deferred = event.defer_s > 0.0
        self.tenant = event.tenant
        self.terms = event.terms
        self.priority = event.priority
        self.prompt_tokens = event.prompt_tokens
        self.prefix_tokens = event.prefix_tokens
        self.max_tokens = event.max_tokens
        self.adapter = event.adapter
        self.chain = event.chain
