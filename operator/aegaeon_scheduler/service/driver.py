"""The only owner of the core: brings it events one after the other, and carries out what it decides.

Everything here is a plain call inside the one event loop, so an event is handled to its end before the next begins;
an event that comes up while one is handled (a refused choice cancels its siblings) waits for its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from aegaeon_proto.v1 import engine_pb2, gateway_pb2
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import POISONED, FailureKind, GatewayId, InstanceId, RejectCode, Role, SeqId
from aegaeon_scheduler.core.nodes import Apart
from aegaeon_scheduler.core.snapshot import Snapshot
from aegaeon_scheduler.service.alarm import Alarm
from aegaeon_scheduler.service.codec import frontend as codec
from aegaeon_scheduler.service.codec.commands import command_to
from aegaeon_scheduler.service.handles import HandleBook
from aegaeon_scheduler.service.prefix import PrefixHashes
from aegaeon_scheduler.service.sequences import OpenSequence, Origin, SequenceBook

_log = logging.getLogger(__name__)


class Brain(Protocol):
    """The core as the driver sees it."""

    def on(self, now: float, event: events.Event) -> list[commands.Command]:
        """Handle one event at `now` (seconds, never less than before)."""

    def snapshot(self, now: float) -> Snapshot:
        """The pool as it stands, for people."""

    def kv_used(self) -> float:
        """Share of the device memory for sequences that they have, 0 to 1."""

    def places(self, before: float) -> dict[SeqId, int]:
        """Places in their queues of the sequences that arrived before (seconds of the clock)."""

    def apart(self, name: str) -> Apart | None:
        """The reason why a model that some engine has is served by no pair of engines; None: it is, or none has it."""

    def roles(self, name: str) -> frozenset[Role]:
        """Roles of the engines that requests for a model may go to."""

    def role_of(self, instance: InstanceId) -> Role | None:
        """Role of an engine; None: it is not attached, or takes nothing new."""

    @property
    def places_version(self) -> int:
        """Rises whenever the engines that may take a model may have changed."""


class Link(Protocol):
    """The way to a sidecar."""

    @property
    def base(self) -> int:
        """Added to the core's command ids on this stream (see codec)."""

    def send(
        self, command: engine_pb2.Command, complete: Callable[[engine_pb2.Command], None] | None = None, /
    ) -> None:
        """Queue a command; never waits. `complete` is called with it when it is written."""


class Observer(Protocol):
    """Called with every event once it is handled: the event log, the metrics."""

    def __call__(self, now: float, event: events.Event, decided: list[commands.Command], seconds: float, /) -> None:
        """`seconds`: what the core took."""


class Driver:
    """Events in, commands out. `clock` is monotonic seconds; `crashed` is called when the core fails.

    After `wait`, events wait for `begin`: the time of the first event that the core receives is its start.
    """

    def __init__(
        self,
        brain: Brain,
        clock: Callable[[], float],
        observers: Iterable[Observer] = (),
        crashed: Callable[[], None] = lambda: None,
    ) -> None:
        self.clock = clock
        self.sequences = SequenceBook()
        self.submitted = asyncio.Event()  # a request was opened; a waiter clears it before
        self.handles = HandleBook()
        self.instances: dict[InstanceId, Link] = {}
        self.gateways: dict[GatewayId, Callable[[gateway_pb2.GatewayReply], None]] = {}
        self._brain = brain
        self._observers = tuple(observers)
        self._crashed = crashed
        self._hashes = PrefixHashes()
        self._pending: deque[events.Event] = deque()
        self._busy = False
        self.waits = False
        self._alarm = Alarm(clock, lambda: self.handle(events.Tick()))
        self._execute: dict[type, Callable[[Any], None]] = {
            commands.Send: self._send,
            commands.Accept: self._accept,
            commands.Reject: self._reject,
            commands.SequenceLost: self._lost,
            commands.SequenceEnded: self._ended,
            commands.Wake: lambda wake: self._alarm.set(wake.at),
        }

    # ---- in ---------------------------------------------------------------------------------------------------------

    def handle(self, *happened: events.Event) -> None:
        """Bring events to the core and carry out what it decides. An error in the core ends the process: what it
        believes can no longer be trusted, and gateways submit again to its successor."""
        self._pending.extend(happened)
        if self._busy:
            return
        self._busy = True
        try:
            while self._pending:
                event = self._pending.popleft()
                self._step(event)
        except Exception:  # of any kind: the process ends, see above
            _log.critical("the core failed on %r", event, exc_info=True)
            self._crashed()
            raise
        self._busy = False

    def wait(self) -> None:
        """Queue events until `begin`, as this process does not lead yet."""
        self._busy = self.waits = True

    def begin(self) -> None:
        """Begin to handle events."""
        self._busy = self.waits = False
        self.handle()

    def submit(self, origin: Origin, submit: gateway_pb2.Submit) -> None:
        """Submit a request, or the rest of one. Refuses an invalid one."""
        reason = codec.complaint(submit)
        if not reason and any(kept.origin.gateway != origin.gateway for kept in self._of(submit.request)):
            reason = f"request {submit.request} is open for another gateway"
        if reason:
            self.refuse(origin, submit, RejectCode.ENGINE, reason)
            return
        self.sequences.add(origin, submit)
        self.submitted.set()
        # All at once: when the first choice is refused, the cancels of the others must come after their submission.
        self.handle(*codec.submitted(origin.gateway, submit, self.clock(), self._hashes.of(submit)))

    def places(self, waited_s: float) -> dict[GatewayId, dict[str, int]]:
        """Queue positions, by gateway, of requests that have waited longer than `waited_s`: that of their last
        choice."""
        places: dict[GatewayId, dict[str, int]] = {}
        for seq, place in self._brain.places(self.clock() - waited_s).items():
            if (kept := self.sequences.get(seq)) is not None:
                of = places.setdefault(kept.origin.gateway, {})
                of[seq.request] = max(place, of.get(seq.request, 0))
        return places

    def refuse(
        self, origin: Origin, submit: gateway_pb2.Submit, code: RejectCode, reason: str, retry_after_s: float = 0.0
    ) -> None:
        """A request that does not reach the core."""
        verdict = commands.Reject(origin.gateway, SeqId(submit.request, 0), code, reason, retry_after_s)
        self.tell(origin.gateway, codec.rejected(submit.request, verdict))

    def cancel(self, gateway: GatewayId, request: str, choices: Iterable[int]) -> None:
        """Cancel these choices of a request (without any: all) whose reader has left. Those of other gateways
        continue."""
        cancelled = set(choices)
        for seq, kept in self.sequences.of_request(request).items():
            if kept.origin.gateway == gateway and (not cancelled or seq.choice in cancelled):
                self.handle(events.Cancelled(seq))

    def cancel_older(self, origin: Origin) -> None:
        """A gateway that came back has submitted all that it still wants: end the rest."""
        for seq in self.sequences.older_than(origin):
            self.handle(events.Cancelled(seq))

    def gateway_down(self, gateway: GatewayId) -> None:
        """A gateway did not come back: its sequences have no reader."""
        self.handle(events.GatewayDown(gateway))
        self.sequences.drop_all(self.sequences.of_gateway(gateway))

    def instance_up(self, event: events.InstanceUp) -> None:
        """A sidecar attached; if the core knew it, what was in flight is lost with its former stream."""
        self.handles.lost(event.instance)
        self.handle(event)

    def instance_down(self, instance: InstanceId) -> None:
        """A sidecar is gone, with all that it held."""
        self.handles.lost(instance)
        self.handle(events.InstanceDown(instance))

    def failed(self, event: events.CommandFailed) -> bool:
        """A command failed; True when an engine may serve a model no longer: its load failed too often."""
        before = self._brain.places_version
        self.handle(event)
        return self._brain.places_version != before

    def done(self, event: events.CommandDone, handle: engine_pb2.KvHandle | None) -> None:
        """A command ended well; a SwapOut brings a handle."""
        if handle is not None:
            self.handles.arrived(event.instance, event.id, handle)
        self.handle(event)

    def stop(self) -> None:
        """Cancel further ticks."""
        self._alarm.stop()

    def _of(self, request: str) -> Iterable[OpenSequence]:
        return self.sequences.of_request(request).values()

    def _step(self, event: events.Event) -> None:
        if isinstance(event, events.CommandFailed | events.CommandSkipped):
            self.handles.failed(event.instance, event.id)
        now = self.clock()
        decided = self._brain.on(now, event)
        seconds = self.clock() - now
        for observer in self._observers:
            observer(now, event, decided, seconds)
        for command in decided:
            self._execute[type(command)](command)

    # ---- out --------------------------------------------------------------------------------------------------------

    def _send(self, send: commands.Send) -> None:
        link = self.instances.get(send.instance)
        if link is None:
            return  # its stream broke: it comes back without what was in flight, or not at all
        message, body = command_to(send, link.base), send.body
        if isinstance(body, commands.Open):
            self._open(link, send, body, message)
            return
        if isinstance(body, commands.SwapOut):
            self.handles.expect(send.instance, send.id, body.seq)
        elif isinstance(body, commands.Adopt):
            # Without a handle the sidecar fails the command, and with it what waits for it.
            handle = self.handles.find(body.seq, body.source, body.handle_of)
            message.adopt.handle.CopyFrom(handle or engine_pb2.KvHandle())
        elif isinstance(body, commands.Close):
            self.handles.closed(send.instance, body.seq)
        link.send(message)

    def _open(self, link: Link, send: commands.Send, body: commands.Open, message: engine_pb2.Command) -> None:
        """The prompt is added when the message is written: the choices that wait for an engine share the submission."""
        kept = self.sequences.get(body.seq)
        if kept is None:
            reason = f"Open of {body.seq}, whose submission is gone"
            self._pending.append(events.CommandFailed(send.instance, send.id, FailureKind.UNKNOWN, reason))
        else:
            link.send(message, kept.complete)

    def tell(self, gateway: GatewayId, reply: gateway_pb2.GatewayReply) -> None:
        """Say something to a gateway."""
        # A disconnected gateway submits again when it is back, so an answer that it misses is not missed.
        if deliver := self.gateways.get(gateway):
            deliver(reply)

    def _accept(self, accept: commands.Accept) -> None:
        kept = self.sequences.get(accept.seq)
        if kept is None or kept.refused:
            return
        kept.queued = True
        if all(other.queued for other in self.sequences.of_request(accept.seq.request).values()):
            self.tell(accept.gateway, codec.accepted(accept.seq.request))

    def _reject(self, reject: commands.Reject) -> None:
        """The first refused choice ends its request: gateways answer for requests, not for choices."""
        kept = self.sequences.get(reject.seq)
        if kept is None:
            return
        self.sequences.drop(reject.seq, kept.epoch)
        if kept.refused:
            return
        if reject.code in POISONED:
            model = kept.submit.model
            _log.warning(
                "%s choice %d of %s was ended: %s", reject.seq.request, reject.seq.choice, model, reject.reason
            )
        for sibling, other in self.sequences.of_request(reject.seq.request).items():
            other.refused = True
            self._pending.append(events.Cancelled(sibling))
        self.tell(reject.gateway, codec.rejected(reject.seq.request, reject))

    def _lost(self, lost: commands.SequenceLost) -> None:
        if not lost.blameless:
            _log.warning("%s choice %d was lost: %s", lost.seq.request, lost.seq.choice, lost.reason)
        self.handles.ended(lost.seq)
        self.tell(lost.gateway, codec.lost(lost))

    def _ended(self, ended: commands.SequenceEnded) -> None:
        self.sequences.drop(ended.seq, ended.epoch)
        if self.sequences.get(ended.seq) is None:
            self.handles.ended(ended.seq)
        if ended.gateway is not None:
            self.tell(ended.gateway, codec.ended(ended))
