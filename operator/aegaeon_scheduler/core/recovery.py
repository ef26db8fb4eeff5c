"""Attachment, failure and return of instances, gateways, models, and sequences under a new epoch."""

from __future__ import annotations

from aegaeon_scheduler.core.claims import Claims
from aegaeon_scheduler.core.commands import Reject, SequenceEnded
from aegaeon_scheduler.core.domain import GatewayId, InstanceId, RejectCode
from aegaeon_scheduler.core.events import CatalogChanged, InstanceUp, ModelReported, Submitted
from aegaeon_scheduler.core.failures import Failures
from aegaeon_scheduler.core.fetches import Fetches
from aegaeon_scheduler.core.handoff import HandOff
from aegaeon_scheduler.core.life import Life
from aegaeon_scheduler.core.nodes import connect, disconnect
from aegaeon_scheduler.core.phases import (
    PHASE_ABSENT,
    PHASE_CACHED,
    PHASE_FAILED,
    PHASE_FETCHING,
    PLACE_HOST,
    STAGE_DECODE,
    STAGE_HANDOFF,
    STAGE_PREFILL,
    STAGE_QUEUED,
)
from aegaeon_scheduler.core.policies import Policy
from aegaeon_scheduler.core.pool import Missing, Pool
from aegaeon_scheduler.core.residency import Residency
from aegaeon_scheduler.core.shared_weights import entered, show, unshow
from aegaeon_scheduler.core.state import Instance, Model, Sequence, SharedWeights, Weights
from aegaeon_scheduler.core.timers import Timers


class Recovery:
    """Attachments, losses and claims."""

    def __init__(
        self, pool: Pool, policy: Policy, timers: Timers, life: Life, residency: Residency, handoff: HandOff,
        failures: Failures, fetches: Fetches, claims: Claims,
    ) -> None:  # fmt: skip
        self._pool = pool
        self._policy = policy
        self._residency = residency
        self._life = life
        self._handoff = handoff
        self._failures = failures
        self._fetches = fetches
        self._timers = timers
        self._claims = claims

    # -- models ------------------------------------------------------------------------------------------------------

    def catalog(self, event: CatalogChanged) -> None:
        """The whole list: new models are known, missing ones end with an answer to what waits, and so does what
        a name stood for when it stands for another model."""
        self._pool.catalog += 1
        listed = {config.name: config for config in event.models}
        for name, model in list(self._pool.models.items()):
            if name not in listed:
                self._withdraw(model, RejectCode.UNKNOWN_MODEL, f"{name} was withdrawn from the catalog")
            elif listed[name].identity != model.config.identity:
                self._withdraw(model, RejectCode.CHANGED, f"{name} stands for another model than it did")
        for name, config in listed.items():
            if name in self._pool.models:
                self._pool.models[name].config = config
                self._policy.reshaped(self._pool.models[name])
            else:
                self._pool.models[name] = Model(config, self._pool.now)
        self._pool.estimates.keep_only(listed)

    def _withdraw(self, model: Model, code: RejectCode, reason: str) -> None:
        for seq in [s for s in self._pool.sequences.values() if s.model is model]:
            self._life.reject(seq, code, reason)
        model.withdrawn = True
        for inst in self._pool.instances.values():
            inst.leave(model)
            inst.contents.pop(model.name, None)
            inst.without.pop(model.name, None)
            unshow(inst, model.name)
        del self._pool.models[model.name]
        self._pool.prefixes.forget(model.name)
        self._pool.fleet.model_changed(model)

    def model(self, event: ModelReported) -> None:
        """How far a model is on an instance."""
        inst, model = self._pool.instances.get(event.instance), self._pool.models.get(event.model)
        if inst is None or model is None:
            return
        before = inst.phases.get(model.name)
        if event.phase is PHASE_FAILED:
            self._failures.model_failed(inst, model, event.reason)
            return
        if event.phase is not PHASE_CACHED and before not in (PHASE_ABSENT, PHASE_FETCHING):
            self._begun_anew(inst, model)
        inst.enter(model, event.phase)
        inst.cold.discard(model.name)
        if event.cold:
            inst.cold.add(model.name)
        model.failed.pop(inst.id, None)
        inst.contents[model.name] = event.footprint.content if event.footprint is not None else ""
        if event.footprint is not None:
            model.measured(event.footprint)
            self._pool.estimates.size(model.name, event.footprint)
        self._pool.fleet.model_changed(model)
        self._policy.reshaped(model)
        if before is PHASE_CACHED and event.phase is not before:
            self._failures.decodes_less(inst, (model,), f"{inst.id} fetches {model.name} anew")
        self._adapters(inst, model, event.without)
        if event.phase is PHASE_CACHED and before is not PHASE_CACHED and model.footprint is not None:
            self._cached(inst, model)
        if event.cold and model.name in inst.weights:
            self._life.wake(inst)
        if event.phase is PHASE_FETCHING:
            self._fetches.expected(model, event.remaining_s)
        elif event.phase is PHASE_ABSENT:
            self._absent(inst, model)
        else:
            model.expected_by = 0.0

    def _absent(self, inst: Instance, model: Model) -> None:
        """Handle a model that was evicted from the instance's node: its sequences move, or wait for it."""
        inst.failures.pop(model.name, None)
        for seq in [s for s in inst.sequences.values() if s.model is model]:
            self._life.lose(seq, f"{model.name} is not on the node of {inst.id} any more", blame=0)
        self._fetches.demand(model)

    def _adapters(self, inst: Instance, model: Model, without: tuple[tuple[str, str], ...]) -> None:
        """Which of the model's adapters the instance lacks. All instances are looked at only where one lacked, or
        lacks, any: a thousand models on 256 instances that attach at once are a quarter of a million reports."""
        lacked = inst.without.pop(model.name, None)
        if without:
            inst.without[model.name] = dict(without)
        if without or lacked or model.without:
            self._failures.adapters_failed(model)

    def _begun_anew(self, inst: Instance, model: Model) -> None:
        """The instance fetches it: whatever it had of it, weights and sequences, is gone."""
        if model.name in inst.reported:
            inst.reported.remove(model.name)
            inst.book.exact = not inst.reported
        unshow(inst, model.name)
        for seq in [s for s in inst.sequences.values() if s.model is model and s.opened]:
            self._life.lose(seq, f"{inst.id} fetches {model.name} anew", blame=0)

    def _resident(self, inst: Instance, model: Model) -> None:
        """Account for a model that was resident before the attachment, once its size is known."""
        if model.name in inst.reported and model.footprint is not None:
            inst.reported.remove(model.name)
            name = inst.shared.get(model.name, model.name)
            shared = inst.shared_weights.setdefault(name, SharedWeights(model.fp.weight_slabs))
            entered(inst, show(inst, Weights(model, shared, None)))
            inst.book.exact = not inst.reported

    def _cached(self, inst: Instance, model: Model) -> None:
        self._resident(inst, model)
        inst.failures.pop(model.name, None)
        for held in [h for h in inst.held.values() if h.model == model.name]:
            seq = self._pool.sequences.get(held.seq)
            if seq is not None and seq.stage is STAGE_QUEUED and seq.epoch > held.epoch and not seq.opened:
                self._claims.claim(inst, held, seq)
        self._handoff.place_waiting(model)
        if model.running:
            self._failures.served_elsewhere(model)

    # -- instances ---------------------------------------------------------------------------------------------------

    def up(self, event: InstanceUp) -> None:
        """An attachment. Whatever ran there before is claimed anew by its gateways, or lost."""
        old = self._pool.instances.get(event.instance)
        inst = Instance(event, self._pool.tick() if old is None else old.order)
        if old is not None:
            restarted = old.incarnation != event.incarnation
            self.down(old.id, "was restarted" if restarted else "attached anew", died=restarted and not event.beside)
            inst.carry_over(old)
        for model in self._pool.models.values():
            if model.died_warming_up.get(inst.id) == inst.incarnation:
                del model.died_warming_up[inst.id]  # its stream broke, and it has not died
        inst.next_id = self._pool.next_ids.get(inst.id, 1)  # ids rise over attachments: no late report is mistaken
        connect(inst, self._pool.instances.values())
        self._pool.instances[inst.id] = inst
        self._pool.missing.pop(inst.id, None)
        self._pool.ask_pass()
        self._refit()
        inst.book.exact = not inst.reported
        for name in list(inst.reported):
            if name in self._pool.models:
                self._resident(inst, self._pool.models[name])
        for held in event.held:
            inst.held[held.seq] = held
            self._pool.held.setdefault(held.seq, {})[inst.id] = held
            seq = self._pool.sequences.get(held.seq)
            if seq is not None and seq.opened and seq.epoch > held.epoch:
                self._claims.expire(inst.id, held, "it goes on elsewhere")
            else:
                self._timers.lease(inst.id, held)

    def drain(self, inst: Instance) -> None:
        """Nothing new goes there; prompts not begun wait elsewhere. The policy moves the rest where it can, and
        what is still there when the instance is gone is lost and goes on elsewhere."""
        inst.draining = True
        self._refit()
        self._failures.decodes_less(inst, list(self._pool.models.values()), f"{inst.id} is draining")
        for seq in [s for s in inst.sequences.values() if s.stage is STAGE_QUEUED and not s.turns and not s.kv_tokens]:
            self._life.withdraw(seq, f"{inst.id} is draining")
            self._life.queue(seq)
        self._pool.ask_pass()

    def _refit(self) -> None:
        """The instances have changed, and with them where models and adapters are served."""
        self._pool.fleet.changed()
        for model in list(self._pool.models.values()):
            if model.without:
                self._failures.adapters_failed(model)
        for model in self._pool.models.values():
            self._fetches.demand(model)  # the instance that was to fetch it may be gone

    def down(self, instance: InstanceId, why: str, died: bool = True) -> None:
        """A sidecar is gone. Sequences handed off from elsewhere and not yet adopted stay with their source.

        One that `died` while it was not draining may have died of what it ran, and of nothing else that it held.
        """
        inst = self._pool.instances.pop(instance, None)
        if inst is None:
            return
        disconnect(inst)
        self._pool.fleet.changed()
        self._pool.next_ids[instance] = inst.next_id
        self._miss(inst)
        for weights in inst.weights.values():
            weights.model.holders.pop(instance, None)
        for model in self._pool.models.values():
            model.failed.pop(instance, None)
            inst.leave(model)
        for held in inst.held.values():
            self._pool.unhold(instance, held.seq)
        self._pool.prefixes.lost(inst)
        self._policy.instance_down(inst)
        if died and not inst.draining:
            for seq in _ran(inst):
                self._life.suspect(seq, f"{instance} {why} while it ran there")
            for turn in inst.turns:
                if turn.warm_up and turn.model is not None:
                    turn.model.died_warming_up[instance] = inst.incarnation
        for seq in list(inst.sequences.values()):
            if seq.source is not None:
                self._back_to_source(seq, seq.source)
            else:
                self._life.lose(seq, f"{instance} {why}", blame=0)
        for seq in [s for s in self._pool.sequences.values() if s.source is inst]:
            self._life.lose(seq, f"{instance} {why} before its KV was copied", blame=0)
        self._refit()
        self._failures.decodes_less(inst, list(self._pool.models.values()), f"{instance} {why}")

    def _miss(self, inst: Instance) -> None:
        """Note a lost instance that may return, as may others that were lost recently. The content of their nodes' host
        memory is kept."""
        pool, since = self._pool, self._pool.now - self._pool.config.restart_s
        recent = {other: lost for other, lost in pool.missing.items() if lost.since > since}
        pool.missing = {**recent, inst.id: Missing(inst.node, pool.now)}
        staying = {other.node for other in pool.instances.values()}
        pool.hosts.keep_only(staying.union(lost.node for lost in pool.missing.values()))

    def _back_to_source(self, seq: Sequence, source: Instance) -> None:
        self._policy.forget(seq)
        if not seq.prefilled:
            self._life.lose(seq, "half of its prompt was to go on elsewhere", blame=0)
            return
        seq.home, seq.source = source, None
        source.sequences[seq.id] = seq
        seq.opened, seq.open_id = True, None
        seq.copy, seq.copying_out, seq.place = None, False, PLACE_HOST
        seq.turns = []
        self._life.stage(seq, STAGE_HANDOFF)
        self._handoff.parked(seq)

    # -- sequences ---------------------------------------------------------------------------------------------------

    def submitted(self, event: Submitted) -> None:
        """A request, or what is left of one."""
        model = self._pool.models.get(event.model)
        seq = self._pool.sequences.get(event.seq)
        if seq is not None:
            self._again(seq, event)
        elif model is None:
            names = ", ".join(self._pool.models) or "none"
            reason = f"unknown model {event.model}; served: {names}"
            self._pool.out.append(Reject(event.gateway, event.seq, RejectCode.UNKNOWN_MODEL, reason))
            self._pool.out.append(SequenceEnded(event.seq, event.epoch))
        else:
            self._life.submit(event, model)
            self._claims.claim_held(event)

    def _again(self, seq: Sequence, event: Submitted) -> None:
        if event.epoch <= seq.epoch:
            return
        if seq.stage in (STAGE_PREFILL, STAGE_DECODE) and seq.opened and seq.source is None and seq.home is not None:
            seq.epoch, seq.gateway = event.epoch, event.gateway
            self._residency.open(seq.home, seq, "its gateway came back: go on under a new epoch")
            self._life.accept(seq)
            return
        self._life.withdraw(seq, "its gateway submitted it again")
        seq.restart(event)
        seq.cached = self._pool.prefixes.find(seq, self._pool.instances)
        self._life.accept(seq)
        refused = self._life.unfit(seq)
        if refused is not None:
            self._life.reject(seq, *refused)
            return
        self._life.queue(seq)
        self._claims.claim_held(event)

    def gateway_down(self, gateway: GatewayId) -> None:
        """Its sequences have no reader."""
        for seq in [s for s in self._pool.sequences.values() if s.gateway == gateway]:
            self._life.cancel(seq, f"gateway {gateway} is gone")


def _ran(inst: Instance) -> list[Sequence]:
    """The sequences of all in-flight turns: a report of which one is on may have been lost with the instance."""
    members = (seq for turn in inst.turns for seq in turn.members.values())
    return list({seq.id: seq for seq in members if seq.home is inst and seq.source is None}.values())
