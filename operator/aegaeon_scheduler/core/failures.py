"""Handles failed and skipped commands: grants return, and the work is tried again or given up."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from aegaeon_scheduler.core.adapters import lacking
from aegaeon_scheduler.core.commands import Load, SwapOut, Turn, Unload
from aegaeon_scheduler.core.domain import FailureKind, Phase, Place, RejectCode, Role, Stage
from aegaeon_scheduler.core.events import CommandFailed, CommandSkipped
from aegaeon_scheduler.core.handoff import HandOff
from aegaeon_scheduler.core.life import Life
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.reports import Reports
from aegaeon_scheduler.core.shared_weights import hide, left
from aegaeon_scheduler.core.state import Instance, Issued, Model, Sequence


class Failures:
    """Applies reports of failure to the tables."""

    def __init__(self, pool: Pool, life: Life, handoff: HandOff, reports: Reports) -> None:
        self._pool = pool
        self._life = life
        self._handoff = handoff
        self._reports = reports

    def failed(self, inst: Instance, event: CommandFailed) -> None:
        """A command failed; what it was granted is free again, what it was for is tried again or given up."""
        opened = inst.opens.pop(event.id, None)
        if opened is not None and opened.open_id == event.id:
            opened.opened = False
            if event.kind is FailureKind.INVALID:
                self._life.reject(opened, RejectCode.INVALID, event.reason)
            else:
                blame = 0 if event.kind is FailureKind.STALE else 1
                self._life.lose(opened, f"{inst.id} refused it: {event.reason}", blame)
        issued = inst.commands.pop(event.id, None)
        if issued is not None:
            inst.book.release_grant(issued)
            self._undo(inst, issued, event.kind, event.reason)
            self._life.wake(inst)
        if event.memory is not None:
            self._reports.memory(inst, event.memory)

    def skipped(self, inst: Instance, event: CommandSkipped) -> None:
        """Undo a command that never ran, as if it had not been sent."""
        issued = inst.commands.pop(event.id, None)
        if issued is not None:
            inst.book.release_grant(issued)
            self._undo(inst, issued, None, f"command {event.because} did not succeed")
            self._life.wake(inst)

    def _undo(self, inst: Instance, issued: Issued, kind: FailureKind | None, reason: str) -> None:
        body = issued.body
        if isinstance(body, Turn):
            self._turn_failed(inst, issued, kind, reason)
        elif isinstance(body, Load):
            self._load_failed(inst, issued, kind, reason)
        elif isinstance(body, Unload):
            self._unload_failed(inst, issued, kind)
        elif issued.seq is not None:
            self._copy_failed(inst, issued, issued.seq, kind, reason)

    def _turn_failed(self, inst: Instance, issued: Issued, kind: FailureKind | None, reason: str) -> None:
        if inst.turns[0] is issued:
            inst.moved_at = self._pool.now  # the next one begins
        inst.turns.remove(issued)
        if issued.weights is not None:
            issued.weights.turns -= 1
        if issued.warm_up and issued.model is not None:
            inst.cold.discard(issued.model.name)  # it is not tried again: the first steps of a sequence show why
        for seq in list(issued.members.values()):
            if kind is FailureKind.ENGINE:
                self._life.suspect(seq, f"turn failed on {inst.id}: {reason}")
            elif kind is FailureKind.UNKNOWN:  # its model was not there: no sequence ran
                self._life.lose(seq, f"turn failed on {inst.id}: {reason}")
        self._reports.reschedule(inst, issued)

    def _load_failed(self, inst: Instance, issued: Issued, kind: FailureKind | None, reason: str) -> None:
        model, weights = issued.model, issued.weights
        assert model is not None
        assert weights is not None
        left(inst, weights)
        weights.shared.broken = True
        if inst.weights.get(model.name) is weights:
            hide(inst, model.name)
        if kind is None:
            return
        failures = inst.failures[model.name] = inst.failures.get(model.name, 0) + 1
        if failures > self._pool.config.max_failures:
            self.model_failed(inst, model, reason)

    def model_failed(self, inst: Instance, model: Model, reason: str) -> None:
        """The model cannot run here: its sequences go elsewhere, or end with the reason when it runs nowhere."""
        inst.enter(model, Phase.FAILED)
        self._pool.fleet.model_changed(model)
        model.failed[inst.id] = reason
        self.decodes_less(inst, (model,), f"{model.name} failed on {inst.id}")
        if inst.without.pop(model.name, None):
            self.adapters_failed(model)
        for seq in [s for s in inst.sequences.values() if s.model is model]:
            self._life.model_failed(seq, f"{model.name} failed on {inst.id}: {reason}")
        self._handoff.place_waiting(model)

    def decodes_less(self, inst: Instance, models: Iterable[Model], reason: str) -> None:
        """An engine decodes these no more: what is prefilled where nothing else takes over from is cut off, and what
        waited without limit for an engine to be free may wait for none that is there."""
        if not inst.partners or inst.role is Role.PREFILL:
            return
        for source in inst.partners:
            for seq in [s for s in source.sequences.values() if not source.hands_over(s.model)]:
                self._life.cut_off(seq, f"{reason}, and nothing else takes over from {source.id}")
        for model in models:
            if model.waiting and self._pool.fleet.of(model).halved:
                for seq in [s for s in model.waiting.values() if s.held_until == inf]:
                    self._life.hold(seq)
        self._pool.ask_pass()

    def served_elsewhere(self, model: Model) -> None:
        """A pair of engines may have come that serves it: what others keep that is cut off is computed again there."""
        places = self._pool.fleet.of(model)
        for source in places.apart if places.served else ():
            for seq in [s for s in source.sequences.values() if s.model is model]:
                self._life.cut_off(seq, f"nothing takes over from {source.id}, and other engines serve {model.name}")

    def adapters_failed(self, model: Model) -> None:
        """Handle a change of the instances that cannot serve the model's adapters: sequences move, or end with the
        reason. None of them is to blame. Those that wait, placed nowhere, may have waited for what fails."""
        before, model.without = model.without, lacking(model, self._pool.instances.values())
        if before == model.without:
            return
        for seq in [s for s in self._pool.sequences.values() if s.model is model and s.adapter]:
            if seq.home is not None and seq.home.lacks(seq):
                self._life.model_failed(seq, f"its adapter cannot be served on {seq.home.id}", blame=0)
            elif seq.home is None and seq.stage is Stage.QUEUED:
                self._life.withdraw(seq, "where its adapter is served has changed")
                self._life.queue(seq)
        self._pool.ask_pass()

    def _unload_failed(self, inst: Instance, issued: Issued, kind: FailureKind | None) -> None:
        inst.count -= 1
        model, weights = issued.model, issued.weights
        assert model is not None
        assert weights is not None
        known = inst.weights.get(model.name) is weights
        if kind is FailureKind.UNKNOWN:  # it is not there: as good as done
            left(inst, weights)
            if known:
                hide(inst, model.name)
            return
        weights.unload = None
        if not known or kind is None:  # it was skipped, behind a turn that failed: the weights are not to blame
            return
        failures = inst.failures[model.name] = inst.failures.get(model.name, 0) + 1
        if failures > self._pool.config.max_failures:
            self.model_failed(inst, model, "its weights cannot be unloaded")
            hide(inst, model.name)  # no longer a candidate for unloading; the book goes on counting it

    def _copy_failed(
        self, inst: Instance, issued: Issued, seq: Sequence, kind: FailureKind | None, reason: str
    ) -> None:
        if isinstance(issued.body, SwapOut):
            inst.count -= 1
        if seq.copy != issued.id or seq.home is not inst:
            return
        seq.copy, seq.copying_out = None, False
        if kind is None:
            self._retry_copy(inst, seq)
            return
        seq.failures += 1
        retry = kind in (FailureKind.NO_MEMORY, FailureKind.CANCELLED, FailureKind.STALE)
        if retry and seq.failures <= self._pool.config.max_failures:
            self._retry_copy(inst, seq)
        else:
            blame = 1 if seq.kv_tokens else 0  # preempted with its first part, which got no memory: it never ran
            self._life.lose(seq, f"copy failed on {inst.id}: {reason}", blame)

    def _retry_copy(self, inst: Instance, seq: Sequence) -> None:
        """Copies in are issued again with the next turn; a hand-off waits for the next report."""
        if seq.stage is Stage.HANDOFF and seq.source is None and seq.place is Place.DEVICE:
            inst.outs.append(seq)
