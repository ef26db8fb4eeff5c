"""One batch from its input to its files, as the gateway that holds its lease works on it.

Whatever ends this process, the next holder goes on with what the store has: answered lines are not asked again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import Raw, structs

from aegaeon_gateway.batches.answers import Answers
from aegaeon_gateway.batches.batches import progress_of
from aegaeon_gateway.batches.files import Files
from aegaeon_gateway.batches.keys import BatchKeys
from aegaeon_gateway.batches.lease import Lease
from aegaeon_gateway.batches.lines import (
    ENDPOINTS,
    Check,
    InputGoneError,
    Line,
    LineTooLongError,
    Numbered,
    lines,
    parsed,
)
from aegaeon_gateway.batches.pages import new_id
from aegaeon_gateway.batches.patience import Patience
from aegaeon_gateway.batches.records import Fault, Order, Progress
from aegaeon_gateway.batches.settings import BatchSettings
from aegaeon_gateway.batches.store import Store
from aegaeon_gateway.batches.throttle import Throttle
from aegaeon_gateway.errors import HttpError, UnavailableError

log = logging.getLogger(__name__)

_AGAIN_S = (1.0, 60.0)  # first and longest pause of a line that found no room
_UNANSWERED = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "The batch was cancelled before this request was executed."),
}


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a line. `again_s`: no answer, but when to ask again at the earliest, seconds.

    `failed`: with it, the model has failed, and `body` says why.
    """

    status: int
    request_id: str
    body: bytes
    again_s: float | None = None
    failed: bool = False


class Asker(Protocol):
    """Asks models what a line asks, as its tenant would."""

    async def ask(self, tenant: str, endpoint: str, body: bytes) -> Reply:
        """`endpoint`: a value of ENDPOINTS. Whatever is wrong with the request is a reply."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """The parts that every batch of a gateway works with. `line_bytes`: of the longest line; `clock`: unix seconds, for
    what is shown; `monotonic`: seconds, for how long something takes, so that no clock that is set ends a batch."""

    store: Store
    files: Files
    settings: BatchSettings
    throttle: Throttle
    asker: Asker
    line_bytes: int
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class Work:
    """A batch under a lease."""

    def __init__(self, tools: Tools, order: Order, lease: Lease) -> None:
        self._tools = tools
        self._order = order
        self._lease = lease
        self._at = BatchKeys(order.tenant, order.id)
        self._answers = Answers(tools.store, self._at.answers, lease.term)
        self._progress = Progress()
        self._lines_open = asyncio.Semaphore(tools.settings.in_flight)
        self._patience = Patience(tools.settings.failed_s, 2 * _AGAIN_S[1], tools.monotonic)
        self._until = tools.monotonic() + order.expires_at - tools.clock()

    async def run(self) -> None:
        """To its end. Raises LeaseLostError, UnavailableError (of the store): another gateway or a retry goes on."""
        await self._tools.store.create(self._at.order, msgspec.json.encode(self._order))  # unless it is there
        self._progress = await progress_of(self._tools.store, self._at)
        try:
            if not self._progress.over and await self._validated():
                await self._answers.load()
                await self._finish(await self._answer())
        except (InputGoneError, LineTooLongError) as error:
            await self._end("failed", faults=(Fault(error.code or "", error.message),))
        await self._tools.store.delete(self._at.open)

    # ---- the input -------------------------------------------------------------------------------------------------

    async def _block(self, start: int, nbytes: int) -> bytes | None:
        return await self._tools.files.part(self._order.tenant, self._order.input_file_id, start, nbytes)

    async def _input(self) -> AsyncIterator[Numbered]:
        """Its lines. Raises InputGoneError, LineTooLongError."""
        try:
            nbytes = (await self._tools.files.get(self._order.tenant, self._order.input_file_id)).nbytes
        except HttpError as error:
            raise InputGoneError from error
        async for line in lines(self._block, nbytes, self._tools.line_bytes):
            yield line

    async def _validated(self) -> bool:
        """True when all lines are requests; else the batch has failed."""
        if self._progress.status != "validating":
            return True
        check = Check(self._order.endpoint, self._tools.settings.lines)
        async for line in self._input():
            if not check.take(line):
                break
            await asyncio.sleep(0)
        check.end()
        if check.faults:
            await self._end("failed", faults=tuple(check.faults))
            return False
        began = int(self._tools.clock())
        await self._say(Progress("in_progress", check.total, in_progress_at=began))
        return True

    # ---- the answers -----------------------------------------------------------------------------------------------

    async def _answer(self) -> str:
        """Ask what is not answered; returns the batch's last state. What is under way when its time is over ends."""
        asking, watching = asyncio.create_task(self._ask_all()), asyncio.create_task(self._watch())
        try:
            await asyncio.wait((asking, watching), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
                return "completed"
            return watching.result()
        finally:
            for task in (asking, watching):
                task.cancel()
            await asyncio.gather(asking, watching, return_exceptions=True)
            with suppress(UnavailableError):
                await self._answers.flush()

    async def _watch(self) -> str:
        """Renew the lease, write down what is answered, and return when the batch was cancelled or its time is over."""
        settings, monotonic = self._tools.settings, self._tools.monotonic
        reached = monotonic()
        while True:
            await asyncio.sleep(min(settings.flush_s, settings.lease_s / 4))
            try:
                await self._lease.renew()
                if await self._answers.flush():
                    await self._say(self._progress)
                cancelled = await self._tools.store.get(self._at.cancelled) is not None
            except UnavailableError:
                if monotonic() - reached > settings.lease_s:
                    raise
                continue
            reached = monotonic()
            if cancelled or reached >= self._until:
                return "cancelled" if cancelled else "expired"

    async def _ask_all(self) -> None:
        try:
            async with asyncio.TaskGroup() as asking:
                async for line in self._input():
                    if not self._answers.has(line.number):
                        await self._lines_open.acquire()
                        asking.create_task(self._ask(line)).add_done_callback(lambda _: self._lines_open.release())
        except ExceptionGroup as group:  # `run` handles single errors, and the first one ended the others
            raise group.exceptions[0] from group

    async def _ask(self, numbered: Numbered) -> None:
        line = parsed(numbered.text, self._order.endpoint)
        pause_s = _AGAIN_S[0]
        while True:
            async with self._tools.throttle.slot():
                reply = await self._tools.asker.ask(
                    self._order.tenant, ENDPOINTS[self._order.endpoint], bytes(line.body)
                )
                if reply.again_s is not None and not reply.failed:
                    self._tools.throttle.refused()
            if reply.again_s is None or (reply.failed and self._patience.is_over(reply.body)):
                response = {"status_code": reply.status, "request_id": reply.request_id, "body": Raw(reply.body)}
                self._answers.add(numbered.number, reply.status < 400, _line(line, response=response))
                return
            await asyncio.sleep(max(pause_s, min(reply.again_s, _AGAIN_S[1])))
            pause_s = min(2 * pause_s, _AGAIN_S[1])

    # ---- the end ---------------------------------------------------------------------------------------------------

    async def _finish(self, state: str) -> None:
        """Its files, of what the store has."""
        if state in _UNANSWERED:
            await self._give_up(*_UNANSWERED[state])
        await self._answers.flush()
        await self._lease.renew()
        await self._say(structs.replace(self._progress, status="finalizing", finalizing_at=int(self._tools.clock())))
        snapshot = await self._answers.snapshot()
        (output, completed), (errors, failed) = [await self._file(snapshot, ok) for ok in (True, False)]
        self._progress = structs.replace(
            self._progress, completed=completed, failed=failed, output_file_id=output, error_file_id=errors
        )
        if await self._end(state):
            await self._tools.store.delete(*snapshot)
        else:
            await self._discard(output, errors)

    async def _give_up(self, code: str, message: str) -> None:
        """Every line without an answer gets one that says why."""
        async for numbered in self._input():
            if not self._answers.has(numbered.number):
                line = parsed(numbered.text, self._order.endpoint)
                self._answers.add(numbered.number, False, _line(line, error={"code": code, "message": message}))

    async def _file(self, snapshot: Sequence[str], ok: bool) -> tuple[str | None, int]:
        """Its id, None without a line, and its lines."""
        id_, order, count = new_id("file-", self._tools.clock()), self._order, 0
        name = f"{order.id}_{'output' if ok else 'error'}.jsonl"

        async def counted() -> AsyncIterator[bytes]:
            nonlocal count
            async for line in self._answers.lines(snapshot, ok):
                count += 1
                yield line

        await self._tools.files.write(order.tenant, id_, name, counted(), order.output_s)
        return id_ if count else None, count

    async def _discard(self, *files: str | None) -> None:
        """Delete the files of a batch that another gateway finished first."""
        for id_ in files:
            if id_ is not None:
                await self._tools.files.delete(self._order.tenant, id_)

    async def _say(self, progress: Progress) -> None:
        counts = {"completed": self._answers.completed, "failed": self._answers.failed}
        self._progress = structs.replace(progress, **counts)
        await self._tools.store.put(self._at.progress, msgspec.json.encode(self._progress))

    async def _end(self, state: str, faults: tuple[Fault, ...] = ()) -> bool:
        """False when another gateway has ended it before."""
        ended = int(self._tools.clock())
        self._progress = structs.replace(self._progress, status=state, ended_at=ended, faults=faults)
        log.info("batch %s is %s: %d of %d requests answered", self._order.id, state, self._progress.completed,
                 self._progress.total)  # fmt: skip
        store, record = self._tools.store, msgspec.json.encode(self._progress)
        # Equal: it was sent twice.
        return await store.create(self._at.end, record) or await store.get(self._at.end) == record


def _line(line: Line, response: dict[str, object] | None = None, error: dict[str, str] | None = None) -> bytes:
    """A line of the output file, or of the error file."""
    id_ = new_id("batch_req_", time.time())
    return msgspec.json.encode({"id": id_, "custom_id": line.custom_id, "response": response, "error": error})
