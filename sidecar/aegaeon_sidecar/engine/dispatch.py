"""Dispatches an arriving command: queues it on its lane, or executes a command without a lane at once.

Open, Close, Amend, Cancel, Catalog and Fetch never wait for a running step or copy.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from aegaeon_proto.engine import commands
from aegaeon_proto.engine.catalog import ModelPhase
from aegaeon_proto.engine.ids import CommandId, ModelName
from aegaeon_proto.engine.reports import CommandSkipped
from aegaeon_sidecar.domain.errors import (
    AbsentError,
    CancelledError,
    CommandError,
    EngineError,
    StaleError,
    UnknownError,
)
from aegaeon_sidecar.domain.program import Lane
from aegaeon_sidecar.engine.lanes import Post, failed
from aegaeon_sidecar.engine.opening import open_sequence
from aegaeon_sidecar.engine.outputs import PushTokens, token_of
from aegaeon_sidecar.engine.state import Queued, State, Work
from aegaeon_sidecar.engine.turn import Turn
from aegaeon_sidecar.kv.sequences import Sequence
from aegaeon_sidecar.memory.copier import Copier
from aegaeon_sidecar.memory.prefix import seed_with
from aegaeon_sidecar.sampling import Guide
from aegaeon_sidecar.sampling.grammars import Grammars, Vocabulary
from aegaeon_sidecar.weights.fetcher import Fetcher
from aegaeon_sidecar.weights.models import Adapter, Model


class Dispatcher:
    """Applies commands of the current attachment. Called by the event loop; never blocks for longer than the lock."""

    def __init__(
        self,
        state: State,
        fetcher: Fetcher,
        copiers: Mapping[Lane, Copier],
        grammars: Grammars,
        push: PushTokens,
        post: Post,
    ) -> None:
        self._state = state
        self._fetcher = fetcher
        self._copiers = copiers
        self._grammars = grammars
        self._push = push
        self._post = post

    def apply(self, command: commands.Command, owner: int) -> None:
        """Queue it or carry it out; what is wrong with it is reported as CommandFailed."""
        body = command.body
        with self._state.monitor.changed:
            try:
                match body:
                    case commands.Turn():
                        self.issue(command.id, command.after, Lane.COMPUTE, Turn.of(command.id, body), owner)
                    case commands.Load() | commands.Unload():
                        self.issue(command.id, command.after, Lane.WEIGHTS, body, owner)
                    case commands.SwapOut():
                        self.issue(command.id, command.after, Lane.KV_OUT, body, owner)
                    case commands.SwapIn() | commands.Adopt():
                        self.issue(command.id, command.after, Lane.KV_IN, body, owner)
                    case _:
                        self._act(body)
                if isinstance(body, commands.Load | commands.Cancel):
                    self._state.update_pins()
            except CommandError as error:
                body = commands.Unload(ModelName(""))  # of the failed command only id and owner count
                shell = Queued(command.id, Lane.COMPUTE, (), body, owner)
                self._fail(shell, error)
            self._state.monitor.notify_lanes(self._state.program)

    def issue(self, command: CommandId, after: Iterable[CommandId], lane: Lane, work: Work, owner: int) -> None:
        """Queue work on a lane (lock held). Raises EngineError when `after` names a later id."""
        item = Queued(command, lane, tuple(after), work, owner, issued_s=time.monotonic())
        try:
            skip = self._state.program.issue(item)
        except ValueError as error:
            raise EngineError(str(error)) from error
        if skip is not None:
            self._post(item, skip)

    def _act(self, body: commands.Immediate | None) -> None:
        match body:
            case commands.Open():
                self._open(body)
            case commands.Close():
                self._close(body)
            case commands.Amend():
                self._amend(body)
            case commands.Cancel(id=command):
                self._cancel(command)
            case commands.Catalog(models, retry):
                self._fetcher.follow(models, retry)
            case commands.Fetch(model, identity):
                self._fetcher.fetch(model, identity)
            case None:
                raise EngineError(
                    "the command has no body that this version knows; use sidecar and scheduler of one version"
                )

    def _open(self, command: commands.Open) -> None:
        model = self._state.table.models.get(command.model)
        if model is None or model.layout is None or model.phase is ModelPhase.FAILED:
            why = "not in the catalog" if model is None else model.reason or "not cached yet"
            raise UnknownError(f"model {command.model} is not served here ({why})")
        held = self._state.kv.sequences.get(command.seq)
        if held is not None and command.epoch < held.epoch:
            raise StaleError(f"sequence {command.seq.request} is at epoch {held.epoch}, not {command.epoch}")
        if held is not None and command.epoch == held.epoch:
            return
        adapter = _adapter(command, model)
        seed = _seed(model, adapter) if self._state.kv.prefix_reuse else b""
        fresh = open_sequence(command, model.layout, seed, self._guide(command, model), adapter)
        if held is not None and _goes_on(held, fresh):
            self._resume(held, fresh)
        else:
            self._state.kv.sequences.add(fresh)
        if adapter is not None:
            self._fetcher.adapters.update()

    def _guide(self, command: commands.Open, model: Model) -> Guide | None:
        constraint = command.sampling.constraint
        if constraint is None:
            return None
        if model.files is None or model.layout is None or model.located is None:
            raise UnknownError(f"model {command.model} is not registered here")
        if model.located.stored is not None and not model.located.stored.is_there:
            self._fetcher.put_off(model)  # the weights may be in yet, but the tokenizer's files are not
            raise AbsentError(f"model {command.model} has made room for others on this node's disk")
        vocabulary = Vocabulary(model.files.directory, model.layout.vocab_size)
        return self._grammars.guide(vocabulary, constraint, self._state.monitor.notify)

    def _resume(self, held: Sequence, fresh: Sequence) -> None:
        held.epoch, held.reply_to = fresh.epoch, fresh.reply_to
        again = range(len(fresh.output), len(held.output))
        self._push(held.reply_to, [token_of(held, i) for i in again])

    def _close(self, command: commands.Close) -> None:
        held = self._state.kv.sequences.get(command.seq)
        if held is None:
            return
        if command.epoch < held.epoch:
            raise StaleError(f"sequence {command.seq.request} is at epoch {held.epoch}, not {command.epoch}")
        self._state.kv.sequences.remove(held.key)

    def _amend(self, change: commands.Amend) -> None:
        item = self._state.program.get(change.turn)
        if item is not None and isinstance(item.body, Turn):
            item.body.amend(change)

    def _cancel(self, command: CommandId) -> None:
        item = self._state.program.get(command)
        if item is None:
            return
        item.cancelled = True
        if not item.running:
            self._fail(item, CancelledError("cancelled before it started"))
        elif item.lane in self._copiers:
            self._copiers[item.lane].cancel(item)

    def _fail(self, item: Queued, error: CommandError) -> None:
        skips: list[CommandSkipped] = self._state.program.fail(item.id)
        self._post(item, failed(self._state.program.instance, item.id, error, self._state.memory()))
        for skip in skips:
            self._post(item, skip)


def _goes_on(held: Sequence, fresh: Sequence) -> bool:
    """The same sequence with at least the client's prefix: determinism promises it, it is checked all the same."""
    if held.model != fresh.model or held.prompt != fresh.prompt or held.pooling != fresh.pooling:
        return False
    same = fresh.adapter is None if held.adapter is None else held.adapter.is_same(fresh.adapter)
    return same and held.holds(fresh.output)


def _adapter(command: commands.Open, model: Model) -> Adapter | None:
    """Raises UnknownError."""
    if not command.adapter:
        return None
    adapter = model.adapters.get(command.adapter)
    if adapter is None or adapter.phase is ModelPhase.FAILED or adapter.spec.identity != command.adapter_identity:
        why = "not in the catalog" if adapter is None else adapter.reason or "another one has its name"
        raise UnknownError(f"adapter {command.adapter} of {model.name} is not served here ({why})")
    return adapter


def _seed(model: Model, adapter: Adapter | None) -> bytes:
    """Empty where blocks are not to be shared: before the adapter's bytes are known."""
    if adapter is None or not model.kv_seed:
        return model.kv_seed
    return seed_with(model.kv_seed, adapter.seed) if adapter.seed else b""
