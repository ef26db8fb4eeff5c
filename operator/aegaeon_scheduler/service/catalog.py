"""The catalog as gateways and people see it: each model's spec and the best that any sidecar says of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from aegaeon_proto.codec.nouns import ROLES
from aegaeon_proto.v1 import engine_pb2, gateway_pb2, model_pb2
from aegaeon_scheduler.config import ModelEntry
from aegaeon_scheduler.core.domain import InstanceId, Phase, Role
from aegaeon_scheduler.core.events import CatalogChanged
from aegaeon_scheduler.core.nodes import Apart
from aegaeon_scheduler.service.codec.catalog import config_of, spec_of
from aegaeon_scheduler.service.identity import with_adapter
from aegaeon_scheduler.service.states import furthest, is_unsupported, rank, reason_of

_PHASES = {
    Phase.ABSENT: model_pb2.MODEL_PHASE_FETCHING,
    Phase.FETCHING: model_pb2.MODEL_PHASE_FETCHING,
    Phase.FAILED: model_pb2.MODEL_PHASE_FAILED,
    None: model_pb2.MODEL_PHASE_UNSPECIFIED,
}
_ENDING = "withdrawn: what was asked of it before is being answered"
_CHANGING = "it changes: what was asked of the former one is being answered, new requests wait"


def _renamed(spec: model_pb2.ModelSpec, name: str) -> model_pb2.ModelSpec:
    renamed = model_pb2.ModelSpec()
    renamed.CopyFrom(spec)
    renamed.name = name
    return renamed


def _adapters(specs: Mapping[str, model_pb2.ModelSpec]) -> dict[str, tuple[str, model_pb2.AdapterSpec]]:
    """Adapters by name, each with the name of its base."""
    return {adapter.name: (name, adapter) for name, spec in specs.items() for adapter in spec.adapters}


class Catalog:
    """Owner of the models and of their states by sidecar. `changed` is called whenever what gateways see has changed.

    A model that is `withdrawing` is gone for gateways; core and sidecars have it until its requests have ended. What a
    name is about to stand for is `staged`: sidecars alone know of it, under a name of its own. While the name is
    `held`, gateways see that one, and that it is on its way. An adapter is a name of its own to gateways, as a model
    is; requests for it are its base's, with the adapter's name beside (`resolved`). `apart` says why engines that have
    a model do not serve it: no two of them can hand its sequences over; `roles` are of those that do. `role_of` gives
    the role of an engine that takes new requests.
    """

    def __init__(
        self,
        models: Iterable[ModelEntry],
        changed: Callable[[], None],
        apart: Callable[[str], Apart | None] = lambda name: None,
        roles: Callable[[str], frozenset[Role]] = lambda name: frozenset(),
        role_of: Callable[[InstanceId], Role | None] = lambda instance: None,
    ) -> None:
        self._specs = {entry.name: spec_of(entry) for entry in models}
        self._configs = {name: config_of(spec) for name, spec in self._specs.items()}
        self._adapters = _adapters(self._specs)
        self._states: dict[str, dict[InstanceId, model_pb2.ModelState]] = {name: {} for name in self._specs}
        self._withdrawing: set[str] = set()
        self._staged: dict[str, model_pb2.ModelSpec] = {}
        self._held: set[str] = set()
        self._known: dict[str, tuple[model_pb2.ModelState, gateway_pb2.ModelStatus]] = {}  # until a state changes
        self._announce = changed
        self._apart = apart
        self._roles = roles
        self._role_of = role_of
        self._starting = ""

    def _changed(self, *names: str) -> None:
        """Note that these models changed (without names: any model, or which there are)."""
        for name in names or list(self._known):
            self._known.pop(name, None)
        self._announce()

    @property
    def specs(self) -> Mapping[str, model_pb2.ModelSpec]:
        """Every model by name, those that are withdrawing among them."""
        return self._specs

    @property
    def withdrawing(self) -> frozenset[str]:
        """Models that take no new requests."""
        return frozenset(self._withdrawing)

    def put(self, spec: model_pb2.ModelSpec) -> None:
        """A model with its entry of now, new or not; it is not withdrawing (any more)."""
        known = self._specs.get(spec.name)
        if known is None or known.identity != spec.identity:
            self._states[spec.name] = {}
        self._specs[spec.name] = spec
        self._configs[spec.name] = config_of(spec)
        if spec.adapters or (known is not None and known.adapters):
            self._adapters = _adapters(self._specs)
        self._withdrawing.discard(spec.name)
        self._changed(spec.name)

    def stage(self, spec: model_pb2.ModelSpec) -> None:
        """Sidecars are to prepare what its name is about to stand for."""
        staged = _renamed(spec, f"{spec.name}~{spec.identity}")
        del staged.adapters[:]  # they are prepared when the name stands for their base
        self.unstage(spec.name)
        self._staged[spec.name] = staged
        self._states[staged.name] = {}

    def unstage(self, name: str) -> None:
        """The name goes on standing for what it does. Idempotent."""
        if (staged := self._staged.pop(name, None)) is not None:
            del self._states[staged.name]
        if name in self._held:
            self._held.discard(name)
            self._changed(name)

    def hold(self, name: str) -> None:
        """Gateways are to let new requests wait for what is staged."""
        self._held.add(name)
        self._changed(name)

    def staged(self, name: str) -> dict[InstanceId, model_pb2.ModelState]:
        """The state of each sidecar for the model staged under a name; reasons use that name."""
        states = {}
        for instance, state in self._states[self._staged[name].name].items():
            states[instance] = model_pb2.ModelState()
            states[instance].CopyFrom(state)
            states[instance].reason = state.reason.replace(state.model, name)
        return states

    def withdraw(self, name: str) -> None:
        """Accept no new requests for the model from now on."""
        self._withdrawing.add(name)
        self._changed(name)

    def drop(self, name: str) -> None:
        """The model is no more. Idempotent."""
        self._withdrawing.discard(name)
        self.unstage(name)
        self._states.pop(name, None)
        self._configs.pop(name, None)
        known = self._specs.pop(name, None)
        if known is not None:
            if known.adapters:
                self._adapters = _adapters(self._specs)
            self._changed(name)

    def event(self) -> CatalogChanged:
        """The models as the core knows them."""
        return CatalogChanged(tuple(self._configs.values()))

    def command(self, retry: bool = False) -> engine_pb2.Command:
        """The catalog command that a sidecar receives first, and whenever the list changes. Its id is 0: no report
        answers it.

        `retry`: the operator requests another try of failed models, with the current content of their files.
        """
        catalog = engine_pb2.Catalog(models=[*self._specs.values(), *self._staged.values()], retry=retry)
        return engine_pb2.Command(reason="the models of this pool", catalog=catalog)

    def base_of(self, name: str) -> str:
        """The model of whose sequences those of this name are; the name itself where it is no adapter's."""
        return self._adapters[name][0] if name in self._adapters else name

    def knows(self, name: str) -> bool:
        """True for the name of a model or an adapter, withdrawing or not."""
        return self.base_of(name) in self._specs

    def means(self, name: str, identity: str) -> bool:
        """True when the name stands for this identity, as far as both sides know; false for a name that is not in the
        catalog."""
        if name in self._adapters:
            base, adapter = self._adapters[name]
            return identity in ("", with_adapter(self._specs[base].identity, adapter.identity))
        return name in self._specs and identity in ("", self._specs[name].identity)

    def resolved(self, submit: gateway_pb2.Submit) -> gateway_pb2.Submit:
        """The same; of an adapter, as its base's with the adapter beside."""
        if submit.model in self._adapters:
            base, adapter = self._adapters[submit.model]
            submit.model, submit.identity = base, self._specs[base].identity
            submit.adapter, submit.adapter_identity = adapter.name, adapter.identity
        return submit

    def prepares(self, name: str) -> bool:
        """True when a model is staged under this name: sidecars prepare it before it receives requests."""
        return any(staged.name == name for staged in self._staged.values())

    def report(self, instance: InstanceId, state: model_pb2.ModelState) -> bool:
        """A sidecar's newest word on a model; whether it is one that is served, and not what its name stood for."""
        if self.prepares(state.model):
            self._states[state.model][instance] = state
            return False
        if not self.means(state.model, state.identity):
            return False
        states = self._states[state.model]
        if states.get(instance) != state:
            states[instance] = state
            self._changed(state.model)
        return True

    def explain(self, starting: str) -> None:
        """Set the activity of sidecars that are not attached yet: the reason of each model without a state."""
        if starting != self._starting:
            self._starting = starting
            self._changed()

    def forget(self, instance: InstanceId) -> None:
        """The sidecar is gone, and what it had cached with it."""
        gone = [states.pop(instance, None) for states in self._states.values()]
        if any(gone):
            self._changed()

    def engines_changed(self) -> None:
        """An engine takes nothing new, or a model failed there: what others have may be of no use without it."""
        self._changed()

    def status(self) -> gateway_pb2.CatalogStatus:
        """Every model that takes requests with the best of its states."""
        models = [self.model(name) for name in self._specs if name not in self._withdrawing]
        return gateway_pb2.CatalogStatus(models=[*models, *self.adapters()])

    def adapters(self) -> list[gateway_pb2.ModelStatus]:
        """Every adapter that takes requests, as gateways see it."""
        serving = (name for name in self._specs if name not in self._withdrawing)
        return [self._adapter(name, adapter) for name in serving for adapter in self._specs[name].adapters]

    def model(self, name: str) -> gateway_pb2.ModelStatus:
        """One model; without a phase when no sidecar has spoken of it. `name` must be in the catalog.

        Gateways let requests wait while engines fetch it: whether it can be served at all is not known yet, and what a
        gateway has not read costs nothing. Where there is no engine, the model is fetched on demand, or the name is
        `held`, they wait in the scheduler's queue: a request there starts an engine or a fetch, and is not lost when
        that takes long.
        """
        return self._of(name)[1]

    def _of(self, name: str) -> tuple[model_pb2.ModelState, gateway_pb2.ModelStatus]:
        """The furthest of a model's states, and what gateways see of it; neither is changed once it is made."""
        known = self._known.get(name)
        if known is None:
            states = self._states[name].values()
            best = furthest(states)
            known = self._known[name] = best, self._status(name, best, states)
        return known

    def _status(
        self, name: str, best: model_pb2.ModelState, states: Collection[model_pb2.ModelState]
    ) -> gateway_pb2.ModelStatus:
        if name in self._held:
            coming = _renamed(self._staged[name], name)
            return gateway_pb2.ModelStatus(spec=coming, phase=model_pb2.MODEL_PHASE_FETCHING, reason=_CHANGING)
        apart = self._apart(name) if best.phase == model_pb2.MODEL_PHASE_CACHED else None
        phase = best.phase if apart is None else _PHASES[apart.phase]
        reason = (reason_of(best, states) if states else self._starting) if apart is None else apart.reason
        on_demand = best.absent or best.on_demand if apart is None else apart.phase is Phase.ABSENT
        return gateway_pb2.ModelStatus(
            spec=self._specs[name],
            phase=phase,
            reason=_ENDING if name in self._withdrawing else reason,
            footprint=best.footprint if best.HasField("footprint") else None,
            bytes_done=best.bytes_done,
            bytes_total=best.bytes_total,
            bytes_per_s=best.bytes_per_s,
            remaining_s=best.remaining_s,
            wait=phase == model_pb2.MODEL_PHASE_FETCHING and not on_demand,
            absent=best.absent,
            unsupported=is_unsupported(best, states),
            apart=apart is not None,
            roles=sorted(ROLES[role] for role in self._roles(name)),
            absent_roles=self._absent_roles(name),
        )

    def _absent_roles(self, name: str) -> list[engine_pb2.Role.ValueType]:
        """Roles of the engines that fetch a model when a request waits for it, where none of the role fetches it."""
        states = self._states[name].items()
        absent = {self._role_of(instance) for instance, state in states if state.absent}
        fetching = model_pb2.MODEL_PHASE_FETCHING
        ahead = {self._role_of(at) for at, state in states if state.phase == fetching and not state.absent}
        return sorted(ROLES[role] for role in absent - ahead if role is not None)

    def _adapter(self, name: str, adapter: model_pb2.AdapterSpec) -> gateway_pb2.ModelStatus:
        """An adapter as gateways see it: its base under another name, with the best of the adapter's own states."""
        status = gateway_pb2.ModelStatus()
        status.CopyFrom(self.model(name))
        status.parent, status.spec.name = name, adapter.name
        status.spec.identity = with_adapter(self._specs[name].identity, adapter.identity)
        del status.spec.adapters[:]
        length = status.footprint.max_model_len
        status.ClearField("footprint")
        if name in self._held:
            status.wait = True  # engines do not know yet what it will be computed with
        if status.phase != model_pb2.MODEL_PHASE_CACHED:
            return status
        states = [state for state in self._states[name].values() if state.phase == model_pb2.MODEL_PHASE_CACHED]
        meant = adapter.name, adapter.identity
        reported = [known for state in states for known in state.adapters if (known.adapter, known.identity) == meant]
        best = max(reported, key=rank, default=model_pb2.AdapterState())
        status.phase, status.reason = best.phase or model_pb2.MODEL_PHASE_FETCHING, reason_of(best, reported)
        status.unsupported = is_unsupported(best, reported)
        status.footprint.max_model_len = length
        status.wait = status.phase == model_pb2.MODEL_PHASE_FETCHING
        return status

    def fetching(self) -> list[model_pb2.ModelState]:
        """The models on their way to a host cache, one state for each: the furthest."""
        best = (self._of(name)[0] for name in self._specs)
        return [state for state in best if state.phase == model_pb2.MODEL_PHASE_FETCHING and not state.absent]
