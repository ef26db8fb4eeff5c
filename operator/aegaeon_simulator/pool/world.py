"""A pool in virtual time: one Scheduler, modelled engines, and clients that count their tokens. Deterministic.

The world plays driver, gateway and network; its clients hold the received prefix, as gateways do, and submit again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import SchedulerConfig
from aegaeon_scheduler.core.domain import (
    FailureKind,
    Finish,
    GatewayId,
    InstanceId,
    ModelConfig,
    ModelName,
    Phase,
    SeqId,
    Slo,
    Terms,
)
from aegaeon_scheduler.core.scheduler import Scheduler
from aegaeon_scheduler.core.slo import Attainment, attainment
from aegaeon_simulator.clock import Clock
from aegaeon_simulator.engine.engine import Engine
from aegaeon_simulator.engine.host_cache import HostCache
from aegaeon_simulator.engine.links import Node
from aegaeon_simulator.engine.spec import EngineSpec, Prompt, Served
from aegaeon_simulator.engine.state import EngineState
from aegaeon_simulator.errors import SettingsError, WireViolationError
from aegaeon_simulator.pool.client import Client

GATEWAY = GatewayId("gateway")


class World:
    """The environment of the core. `delay_s` is the network's, one way."""

    def __init__(
        self,
        config: SchedulerConfig,
        models: dict[ModelName, tuple[Served, Slo]],
        engines: list[EngineSpec],
        delay_s: float = 0.0,
        heartbeat_s: float = 0.5,
        fault: Callable[[cmd.Send], FailureKind | None] = lambda send: None,
        observe: Callable[[float, ev.Event, list[cmd.Command]], None] = lambda now, event, commands: None,
        terms: Mapping[ModelName, Terms] = MappingProxyType({}),
    ) -> None:
        self.clock = Clock()
        self.scheduler = Scheduler(config)
        self.models = models
        self.delay_s = delay_s
        self.heartbeat_s = heartbeat_s
        self.fault = fault
        self.observe = observe
        self.clients: dict[SeqId, Client] = {}
        self.engines: dict[InstanceId, Engine] = {}
        self.specs = {spec.instance: spec for spec in engines}
        self._waiting: list[Client] = []  # some have their answer already
        self._nodes: dict[str, Node] = {}
        self._caches: dict[str, HostCache] = {}
        self._incarnation = 0
        self._attached: dict[InstanceId, int] = {}
        catalog = (ModelConfig(name, slo, terms.get(name, Terms())) for name, (_, slo) in models.items())
        self.feed(ev.CatalogChanged(tuple(catalog)))
        self._warm(engines)
        for spec in engines:
            self.start(spec.instance)

    # -- engines -----------------------------------------------------------------------------------------------------

    def start(self, instance: InstanceId) -> None:
        """Start (or restart) an engine with nothing on it."""
        self._incarnation += 1
        spec = self.specs[instance]
        engine = Engine(
            spec, self._served(spec), self.clock, self._from_engine, self._prompt, self._state_of, self._token,
            str(self._incarnation), self._fault, self._node(spec), self._cache(spec),
        )  # fmt: skip
        self.engines[instance] = engine
        self._greet(engine)
        self._beat(engine)

    def _state_of(self, instance: InstanceId) -> EngineState | None:
        """The state of an engine from which other engines may adopt sequences."""
        engine = self.engines.get(instance)
        return engine.state if engine is not None else None

    def _served(self, spec: EngineSpec) -> dict[ModelName, Served]:
        """The models that the engine's node has and its device can run, at the device's pace."""
        bound, pace = spec.models, spec.latency
        served = {name: s for name, (s, _) in self.models.items() if bound is None or name in bound}
        if pace is None:
            return served
        return {name: replace(s, latency=pace[name]) for name, s in served.items() if name in pace}

    def _node(self, spec: EngineSpec) -> Node | None:
        """The memory that the engine shares with its node, when that limits it."""
        if not spec.node_bytes_per_s:
            return None
        return self._nodes.setdefault(spec.node, Node(self.clock, spec.node_bytes_per_s))

    def _cache(self, spec: EngineSpec) -> HostCache | None:
        """The host cache of the engine's node, when it cannot hold all weights."""
        if not spec.host_cache_bytes:
            return None
        return self._caches[spec.node]

    def _warm(self, engines: list[EngineSpec]) -> None:
        """Begin with each model in the memory of one node, as far as there is room, then with further copies."""
        limited = {spec.node: spec for spec in engines if spec.host_cache_bytes}
        for node, spec in limited.items():

            def changed(held: tuple[ModelName, ...], node: str = node) -> None:
                self._from_engine(ev.HostReported(node, held))

            self._caches[node] = HostCache(self.clock, spec.host_cache_bytes, spec.disk_bytes_per_s, changed)
        sizes = {name: served.footprint.weight_bytes for name, (served, _) in self.models.items()}
        left = dict(sizes)
        for k, cache in enumerate(self._caches.values()):
            for name in cache.warm(list(left.items())[:: len(self._caches) - k]):
                del left[name]
        for cache in self._caches.values():
            cache.warm(sizes.items())

    def _beat(self, engine: Engine) -> None:
        def beat() -> None:
            if engine.alive and self.any_open():
                engine.heartbeat()
            if engine.alive:
                self._beat(engine)

        self.clock.at(self.clock.now + self.heartbeat_s, beat)

    def kill(self, instance: InstanceId) -> None:
        """The engine's process dies; the scheduler is notified."""
        engine = self.engines.pop(instance, None)
        if engine is not None:
            engine.kill()
            self._from_engine(ev.InstanceDown(instance))

    def drain(self, instance: InstanceId) -> None:
        """The engine says that it is about to end; it goes on until it is killed."""
        if instance in self.engines:
            self._from_engine(ev.InstanceDraining(instance))

    def attach_again(self, instance: InstanceId) -> None:
        """The engine's stream broke and is back: it says hello with all that it holds.

        Turns, loads and copies that were under way have ended, queued ones are forgotten, as a sidecar does.
        """
        engine = self.engines[instance]
        engine.attachment += 1
        self._from_engine(ev.InstanceDown(instance))
        self._reattach_when_idle(engine, engine.attachment)

    def _reattach_when_idle(self, engine: Engine, attachment: int) -> None:
        if attachment != engine.attachment:
            return  # it broke once more
        engine.drop_program()
        if engine.busy():
            self.clock.at(self.clock.now + 0.01, lambda: self._reattach_when_idle(engine, attachment))
        elif engine.alive:
            self._greet(engine)

    def fail_adapters(self, instance: InstanceId, model: ModelName, failed: Mapping[str, str]) -> None:
        """The engine says which of the model's adapters it cannot serve, and why; others it can."""
        footprint, without = self._served(self.specs[instance])[model].footprint, tuple(failed.items())
        cold = self.engines[instance].compute.is_cold(model)
        self._from_engine(ev.ModelReported(instance, model, Phase.CACHED, footprint, without=without, cold=cold))

    def _greet(self, engine: Engine) -> None:
        """Say hello; commands given from then on go to this attachment."""
        attachment, instance = engine.attachment, engine.spec.instance

        def attached() -> None:
            self._attached[instance] = attachment

        self.clock.at(self.clock.now + self.delay_s, attached)
        for event in engine.hello():
            self._from_engine(event)

    def _fault(self, send: cmd.Send) -> FailureKind | None:
        return self.fault(send)

    def _from_engine(self, event: ev.Event) -> None:
        self.clock.at(self.clock.now + self.delay_s, lambda: self.feed(event))

    # -- clients -----------------------------------------------------------------------------------------------------

    def request(
        self,
        name: str,
        model: ModelName,
        prompt_tokens: int,
        length: int,
        at: float,
        max_tokens: int = 1 << 20,
        adapter: str = "",
    ) -> Client:
        """A request arrives at this time and ends by itself after `length` tokens. Raises SettingsError."""
        seq = SeqId(name, 0)
        client = Client(seq, model, prompt_tokens, min(length, max_tokens), max_tokens, at, adapter=adapter)
        if model in self.models and self.models[model][0].footprint.pools and client.length > 1:
            raise SettingsError(f"{model} generates nothing, but {name} asks it for {client.length} tokens; give 1")
        self.clients[seq] = client
        self._waiting.append(client)
        self.clock.at(at, lambda: self._submit(client))
        return client

    def cancel(self, client: Client) -> None:
        """The reader leaves now."""
        if client.open:
            client.cancelled = True
            self.feed(ev.Cancelled(client.seq))

    def _submit(self, client: Client) -> None:
        if client.open:
            c = client
            age = (c.seq, c.epoch, GATEWAY, c.model, c.arrival)
            size = (c.prompt_tokens, len(c.times), c.max_tokens)
            chain = c.content.chain(c.prompt_tokens) if c.content is not None else ()
            self.feed(ev.Submitted(*age, *size, c.defer_s, c.tenant, c.priority, c.adapter, c.terms, chain))

    def submit_again(self, client: Client) -> None:
        """Submit again, as after a broken stream between gateway and scheduler."""
        client.epoch += 1
        self._submit(client)

    def _prompt(self, seq: SeqId, epoch: int) -> Prompt | None:
        client = self.clients[seq]
        if epoch != client.epoch:
            return None
        return Prompt(client.prompt_tokens, len(client.times), client.length, client.content)

    def _token(self, seq: SeqId, epoch: int, index: int, times: list[float], finish: Finish | None) -> None:
        client = self.clients[seq]
        if epoch != client.epoch or index + len(times) <= len(client.times) or client.cancelled:
            return
        if index > len(client.times):
            raise WireViolationError(f"{seq}: token {index} came, {len(client.times)} was due")
        arrival = client.arrival
        client.times.extend([t - arrival for t in times[len(client.times) - index :]])
        if finish is not None and not client.finished:
            client.finished = True
            client.ended()

    # -- driver ------------------------------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        """One event into the core; its commands go where they belong."""
        now = self.clock.now
        commands = self.scheduler.on(now, event)
        self.observe(now, event, commands)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.Send):
            engine = self.engines.get(command.instance)
            if engine is not None:
                attachment = self._attached.get(command.instance, 0)
                self.clock.at(self.clock.now + self.delay_s, lambda: engine.receive(command, attachment))
        elif isinstance(command, cmd.Wake):
            self.clock.at(command.at, lambda: self.feed(ev.Tick()))
        elif isinstance(command, cmd.SequenceLost):
            client = self.clients[command.seq]
            if not client.open:
                self.clock.at(self.clock.now, lambda: self.feed(ev.Cancelled(client.seq)))
            elif client.epoch == command.epoch:
                client.epoch += 1
                self.clock.at(self.clock.now + self.delay_s, lambda: self._submit(client))
        elif isinstance(command, cmd.Accept):
            self.clients[command.seq].accepted += 1
        elif isinstance(command, cmd.Reject):
            client = self.clients[command.seq]
            client.rejected, client.rejected_at = command, self.clock.now
            client.ended()
        elif isinstance(command, cmd.SequenceEnded):
            self.clients[command.seq].ends += 1

    def run(self, until: float, idle: bool = True) -> None:
        """Advance to this time; with `idle`, stop early when every client has its answer."""
        while (at := self.clock.next_at()) is not None and at <= until:
            self.clock.step()
            if idle and self.clients and not self.any_open():
                return

    def any_open(self) -> bool:
        """True while any client waits; looks only once at each client that has its answer."""
        waiting = self._waiting
        while waiting and not waiting[-1].open:
            waiting.pop()
        return bool(waiting)

    def attainment(self) -> Attainment:
        """All three forms over the clients that did not leave."""
        kept = [c for c in self.clients.values() if not c.cancelled]
        return attainment((c.times, self.models[c.model][1], c.length) for c in kept)
