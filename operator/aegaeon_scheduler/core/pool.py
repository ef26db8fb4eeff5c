"""The core's tables of models, instances and sequences, the output of an event, and the only way to send commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aegaeon_scheduler.core.commands import Body, Command, Send
from aegaeon_scheduler.core.config import SchedulerConfig
from aegaeon_scheduler.core.domain import CommandId, Held, InstanceId, KvShape, ModelName, SeqId
from aegaeon_scheduler.core.estimate import Estimates
from aegaeon_scheduler.core.fleet import Fleet
from aegaeon_scheduler.core.hosts import Hosts
from aegaeon_scheduler.core.prefix import Prefixes
from aegaeon_scheduler.core.state import Instance, Issued, Model, Sequence


class Missing(NamedTuple):
    """Where an instance was that is gone, and since when that is so."""

    node: str
    since: float


class Pool:
    """All tables, the output of the event at hand, and the one way to send a command."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.estimates = Estimates(config)
        self.hosts = Hosts()
        self.prefixes = Prefixes()
        self.models: dict[ModelName, Model] = {}
        self.instances: dict[InstanceId, Instance] = {}
        self.fleet = Fleet()
        self.sequences: dict[SeqId, Sequence] = {}
        self.held: dict[SeqId, dict[InstanceId, Held]] = {}  # what attaching instances hold and no gateway has claimed
        self.suspects: dict[SeqId, Sequence] = {}  # those that run alone, see suspects.py
        self.parked: dict[SeqId, Sequence] = {}  # prefilled, on a source's host tier, no decode instance yet
        self.next_ids: dict[InstanceId, int] = {}  # of instances that are gone
        self.gated: dict[SeqId, Sequence] = {}  # new ones that wait at the KV gate, see cache_admission.py
        self.missing: dict[InstanceId, Missing] = {}  # instances that are gone, and may be back
        self.expected: frozenset[InstanceId] | None = None  # all that the pool is to have; None: that is not known
        self.out: list[Command] = []
        self.now = 0.0
        self.began: float | None = None  # time of the first event
        self.queued = 0
        self.stretch = 1  # decode turns may be so many times as long as usual: see events.TurnsStretched
        self.catalog = 0  # its version: how often it was given
        self.serial = 0
        self.pass_at: float | None = None  # when the policy wants its next pass over the pool
        self.pass_from = 0.0  # not before this time

    @property
    def reattach_deadline(self) -> float:
        """Until then instances that outlived an earlier scheduler may still attach."""
        return (self.now if self.began is None else self.began) + self.config.reattach_grace_s

    def ask_pass(self) -> None:
        """Something changed that may let the policy move models or sequences: a pass as soon as may be."""
        if self.pass_at is not None:
            self.pass_at = min(self.pass_at, max(self.now, self.pass_from))

    def block_bytes(self) -> dict[KvShape, int]:
        """Bytes of a KV block of each shape."""
        return {m.footprint.kv_shape: m.footprint.kv_block_bytes for m in self.models.values() if m.footprint}

    def awaits_return(self) -> bool:
        """True when an instance that left within `restart_s` may return: it was restarted, or its node is cut off."""
        since, expected = self.now - self.config.restart_s, self.expected
        return any(
            lost.since > since and (expected is None or instance in expected) for instance, lost in self.missing.items()
        )

    def unhold(self, instance: InstanceId, seq: SeqId) -> None:
        """The instance holds it no longer without a gateway's claim."""
        holders = self.held.get(seq, {})
        holders.pop(instance, None)
        if not holders:
            self.held.pop(seq, None)

    def tick(self) -> int:
        """A number that rises: order of use and of arrival."""
        self.serial += 1
        return self.serial

    def send(self, inst: Instance, body: Body, reason: str, after: Iterable[CommandId] = ()) -> CommandId:
        """Issue a command without a lane (Open, Close, Amend, Cancel, Fetch)."""
        id = CommandId(inst.next_id)
        inst.next_id += 1
        inst.reason = reason
        self.out.append(Send(inst.id, id, body, tuple(after), reason))
        return id

    def issue(
        self, inst: Instance, body: Body, reason: str, after: tuple[CommandId, ...] = (), *,
        model: Model | None = None, seq: Sequence | None = None,
    ) -> Issued:  # fmt: skip
        """Issue a command with a lane; it is in flight until its report comes."""
        issued = Issued(self.send(inst, body, reason, after), body, model, seq)
        inst.commands[issued.id] = issued
        return issued
