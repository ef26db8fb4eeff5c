"""Sidecars: one Attach stream each, reports up, commands down, and the judgement whether one is still there.

A stream that breaks may have lost commands and reports in flight, and neither side can tell which. So no stream is
ever continued: a sidecar that comes back is InstanceUp anew, and to the core all that was in flight is lost, while what
its Hello lists is held. Sequences go on by epoch: gateways submit again, and an engine that holds one continues it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import grpc

from aegaeon_proto.codec.errors import ProtocolError
from aegaeon_proto.codec.hello import instance_up_from
from aegaeon_proto.codec.reports import ReportDecoder, command_named
from aegaeon_proto.v1 import engine_pb2, engine_pb2_grpc, model_pb2
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.domain import InstanceId
from aegaeon_scheduler.errors import ReplacedError
from aegaeon_scheduler.service.catalog import Catalog
from aegaeon_scheduler.service.changes import CatalogChanges
from aegaeon_scheduler.service.codec.reports import model_reported
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.leadership import refuse_streams
from aegaeon_scheduler.service.outbox import Outbox
from aegaeon_scheduler.service.starting import Starting
from aegaeon_scheduler.service.stream import converse
from aegaeon_scheduler.service.throttle import Throttle

_OUTBOX_LIMIT = 16384  # commands that may wait for one sidecar; far more than a program ever holds
_BATCH = 64  # commands of one message


class _Ending(NamedTuple):
    """The end of a deleted pod: until when it is valid, and the attached process, if any; unix time."""

    until: float
    incarnation: str
    since: float


class Attachment:
    """One stream of one sidecar. Its command ids lie above `base`; lower ones are of an earlier stream."""

    def __init__(self, up: events.InstanceUp, base: int, started: float) -> None:
        self.instance = up.instance
        self.incarnation = up.incarnation
        self.started = started  # the process, in unix seconds; 0 of one that does not say
        self.base = base
        self.outbox: Outbox[engine_pb2.Command] = Outbox(_OUTBOX_LIMIT)
        self.decoder = ReportDecoder(up.instance, up.node, up.memory, base)
        self.timer: asyncio.TimerHandle | None = None  # silence while the stream stands, absence once it broke
        self.heard_at = 0.0
        self.unread = False  # a message of it waits for its turn
        self.draining = False

    @property
    def stands(self) -> bool:
        """Its stream is open."""
        return not self.outbox.closed

    def send(self, command: engine_pb2.Command, complete: Callable[[engine_pb2.Command], None] | None = None) -> None:
        """Queue a command. A catalog may be as large as all models' files and settings."""
        self.outbox.put(command, complete, large=command.HasField("catalog"))

    async def messages(self) -> AsyncIterator[engine_pb2.Commands]:
        """All commands, as the messages that they share."""
        async for batch in self.outbox.batches(_BATCH):
            yield engine_pb2.Commands(commands=batch)

    def end(self) -> None:
        """Close the stream, and judge it no more."""
        self.outbox.close()
        if self.timer is not None:
            self.timer.cancel()


class EngineService(engine_pb2_grpc.EngineServicer):
    """Servicer of `Engine`. Seconds: `silence_s` without a report, or `reattach_s` without a stream, mean gone.

    `bases` gives each stream the number above which its command ids lie, higher than any id before it.
    """

    def __init__(
        self,
        driver: Driver,
        catalog: Catalog,
        changes: CatalogChanges,
        silence_s: float,
        reattach_s: float,
        bases: Callable[[], int],
        throttle: Throttle,
    ) -> None:
        self._driver = driver
        self._throttle = throttle
        self._catalog = catalog
        self._changes = changes
        self._silence_s = silence_s
        self._reattach_s = reattach_s
        self._bases = bases
        self._attached: dict[InstanceId, Attachment] = {}
        self._ending: dict[InstanceId, _Ending] = {}
        self.starting = Starting(catalog.explain)
        self._stopped = False

    # The stub speaks of a generator; a coroutine that writes sees its own cancellation, so its end is never late.
    async def Attach(  # type: ignore[override]  # the stub is for sync servers as well
        self, request_iterator: AsyncIterator[engine_pb2.Reports], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """One sidecar, from its Hello until the stream ends."""
        await refuse_streams(self._driver, context)
        try:
            attachment = self._welcome(await anext(request_iterator, engine_pb2.Reports()))
        except ProtocolError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except ReplacedError as error:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, str(error))
        try:
            await converse(
                self._in_turn(attachment, request_iterator),
                lambda message: self._reports(attachment, message.reports),
                attachment.outbox,
                attachment.messages(),
                context,
            )
        finally:
            self._broke(attachment)

    async def Announce(
        self, request: engine_pb2.Announcement, context: grpc.aio.ServicerContext[Any, Any]
    ) -> engine_pb2.Announced:
        """A sidecar that will attach: clients that wait for an engine are notified of what it does."""
        await refuse_streams(self._driver, context)
        if InstanceId(request.instance) not in self._attached:
            self.starting.note(request)
        return engine_pb2.Announced()

    @property
    def up(self) -> int:
        """Sidecars that count as alive."""
        return len(self._attached)

    def send_catalog(self, retry: bool = False) -> None:
        """The catalog changed, or failed models are to be tried again (`retry`): send it. A disconnected sidecar
        receives it when it reconnects."""
        for attachment in self._attached.values():
            attachment.send(self._catalog.command(retry))

    def set_ending(self, instances: Iterable[str], for_s: float) -> None:
        """Mark pods that are about to end: nothing new is sent there, now or when they attach within that time.
        Replacement pods of a StatefulSet have the same names."""
        until, since = self._driver.clock() + for_s, time.time()
        self._ending = {}
        for name in map(InstanceId, instances):
            attachment = self._attached.get(name)
            self._ending[name] = _Ending(until, attachment.incarnation if attachment else "", since)
            if attachment is not None:
                self._drain_if_ending(attachment)

    def stop(self) -> None:
        """Close every stream once what waits for it is written; heartbeats are not checked any more."""
        self._stopped = True
        self.starting.stop()
        for attachment in self._attached.values():
            attachment.end()

    def _welcome(self, message: engine_pb2.Reports) -> Attachment:
        first, *more = message.reports or [engine_pb2.Report()]
        if first.WhichOneof("body") != "hello":
            raise ProtocolError("the first report on a stream must be Hello")
        hello = first.hello
        beside = self._beside(hello)
        self._changes.attached(hello)
        known = [spec for spec in hello.catalog if spec.name in self._catalog.specs]
        changed = {spec.name for spec in known if not self._catalog.means(spec.name, spec.identity)}
        up = replace(instance_up_from(hello, changed), beside=beside)
        for state in hello.models:
            model_reported(up.instance, state)  # refused before the instance is known anywhere
        attachment = Attachment(up, self._bases(), hello.started)
        self._replace(up.instance)
        self._attached[up.instance] = attachment
        self.starting.end(up.instance)
        self._driver.instances[up.instance] = attachment
        attachment.send(self._catalog.command())
        self._watch(attachment)
        self._driver.instance_up(up)
        for state in hello.models:
            if state.model not in changed:  # it is about to forget its state of those
                self._report(attachment, engine_pb2.Report(model=state))
        self._reports(attachment, more)
        self._drain_if_ending(attachment)
        return attachment

    def _drain_if_ending(self, attachment: Attachment) -> None:
        ending = self._ending.get(attachment.instance)
        if attachment.draining or ending is None or ending.until <= self._driver.clock():
            return
        before = not ending.incarnation and attachment.started < ending.since
        if before or attachment.incarnation == ending.incarnation:
            self._drains(attachment, events.InstanceDraining(attachment.instance))

    def _drains(self, attachment: Attachment, event: events.InstanceDraining) -> None:
        attachment.draining = True
        self._driver.handle(event)
        self._catalog.engines_changed()

    def _beside(self, hello: engine_pb2.Hello) -> bool:
        """True when another process of that name lives, which this one replaces.

        A pod of a StatefulSet that was deleted by force may go on for a while beside its successor. Raises
        ReplacedError when this is the one that started first: in turns they would take all work from each other.
        """
        attached = self._attached.get(InstanceId(hello.instance))
        if attached is None or attached.incarnation == hello.incarnation:
            return False
        if 0 < hello.started < attached.started and not attached.draining:
            raise ReplacedError(
                f"another process named {hello.instance} started after this one; end one of them, or rename it"
            )
        return attached.stands

    async def _in_turn(
        self, attachment: Attachment, messages: AsyncIterator[engine_pb2.Reports]
    ) -> AsyncIterator[engine_pb2.Reports]:
        async for message in messages:
            attachment.unread = True
            await self._throttle.enter()
            attachment.unread = False
            yield message

    def _reports(self, attachment: Attachment, reports: Iterable[engine_pb2.Report]) -> None:
        for report in reports:
            self._report(attachment, report)

    def _report(self, attachment: Attachment, report: engine_pb2.Report) -> None:
        if self._attached.get(attachment.instance) is not attachment:
            return  # replaced or given up while this was on its way
        attachment.heard_at = self._driver.clock()
        named = command_named(report)
        if named is not None and named <= attachment.base:
            return  # about a command of an earlier stream, or of an earlier life
        if report.HasField("model"):
            self._model(attachment, report.model)
            return
        if report.HasField("hello"):
            raise ProtocolError(f"{attachment.instance}: Hello twice on one stream; open a new stream instead")
        event = attachment.decoder.report(report)
        if isinstance(event, events.InstanceDraining):
            self._drains(attachment, event)
        elif isinstance(event, events.CommandDone):
            self._driver.done(event, report.done.handle if report.done.HasField("handle") else None)
        elif isinstance(event, events.CommandFailed):
            if self._driver.failed(event):
                self._catalog.engines_changed()
        elif event is not None:
            self._driver.handle(event)

    def _model(self, attachment: Attachment, state: model_pb2.ModelState) -> None:
        event = model_reported(attachment.instance, state)
        if self._catalog.report(event.instance, state):
            self._driver.handle(event)
        elif state.absent and self._catalog.prepares(state.model):
            fetch = engine_pb2.Fetch(model=state.model, identity=state.identity)
            attachment.send(engine_pb2.Command(reason="the new model of a name is prepared", fetch=fetch))

    # ---- alive or not -----------------------------------------------------------------------------------------------

    def _watch(self, attachment: Attachment) -> None:
        attachment.heard_at = self._driver.clock()
        self._listen_after(self._silence_s, attachment)

    def _listen_after(self, seconds: float, attachment: Attachment) -> None:
        due = self._driver.clock() + seconds
        attachment.timer = asyncio.get_running_loop().call_later(seconds, self._listen, attachment, due)

    def _listen(self, attachment: Attachment, due: float) -> None:
        """A silent one is gone, unless this process was stopped or is late: what came meanwhile is read first."""
        now = self._driver.clock()
        left = attachment.heard_at + self._silence_s - now
        if attachment.unread or now - due > self._silence_s / 2:
            left = max(left, self._silence_s / 2)
        if left <= 0:
            self._gone(attachment.instance)
        else:
            self._listen_after(left, attachment)

    def _broke(self, attachment: Attachment) -> None:
        """The stream ended, by either side. One that was replaced or given up belongs to no instance any more."""
        if self._stopped or self._attached.get(attachment.instance) is not attachment:
            return
        attachment.end()
        self._driver.instances.pop(attachment.instance, None)
        reattach_s = 0.0 if attachment.draining else self._reattach_s  # one that was about to end has ended
        attachment.timer = asyncio.get_running_loop().call_later(reattach_s, self._gone, attachment.instance)

    def _replace(self, instance: InstanceId) -> None:
        if attachment := self._attached.pop(instance, None):
            attachment.end()
            self._driver.instances.pop(instance, None)
            self._catalog.forget(instance)

    def _gone(self, instance: InstanceId) -> None:
        self._replace(instance)
        self._driver.instance_down(instance)
