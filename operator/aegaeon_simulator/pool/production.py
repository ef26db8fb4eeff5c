"""The scheduler's own core over a workload: the same object as in production, on modelled engines in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from aegaeon_scheduler.core.config import ConstantsOf, SchedulerConfig, SlackSettings, policy_settings
from aegaeon_scheduler.core.domain import Footprint, InstanceId, KvShape, ModelName, Role
from aegaeon_scheduler.core.errors import ConfigError
from aegaeon_simulator.devices import Charge, Device, Kind, Machines
from aegaeon_simulator.engine.spec import EngineSpec, Served
from aegaeon_simulator.errors import SettingsError
from aegaeon_simulator.pool.clients import Clients
from aegaeon_simulator.pool.world import World
from aegaeon_simulator.results.outcome import Outcome
from aegaeon_simulator.settings import Settings
from aegaeon_simulator.workload import Workload

_SLICE_S = 1.0  # of virtual time between two looks at the progress


def simulate_production(
    settings: Settings, workload: Workload, machines: Machines, progress: Callable[[float], None]
) -> Outcome:
    """Run the core's policy. Raises SettingsError for one that it does not know, DeviceError for a model too large."""
    names = [ModelName(f"model-{m:03}") for m in range(len(workload.kinds))]
    kinds = dict(zip(names, workload.kinds, strict=True))
    served = {n: _served(machines.first, machines.kind(k)) for n, k in kinds.items()}
    pool = {name: (s, settings.slo_of(m)) for m, (name, s) in enumerate(served.items())}
    specs = _engines(settings, machines, kinds)
    try:
        terms = dict(zip(names, workload.terms, strict=False))
        world = World(_config(settings, specs), pool, specs, settings.delay_s, 0.5, terms=terms)
    except ConfigError as error:
        raise SettingsError(f"--policy {settings.policy}: {error}") from error
    clients = Clients(world, names, workload.arrivals)
    _run(world, workload, settings, progress)
    requests = clients.served()
    usage = [engine.state.usage for engine in world.engines.values()]
    least = clients.least_tokens(machines.first.block_tokens)
    return Outcome(requests, usage, world.clock.now, world.clock.steps, least)


def _run(world: World, workload: Workload, settings: Settings, progress: Callable[[float], None]) -> None:
    end = (workload.arrivals[-1].t_s if workload.arrivals else 0.0) + settings.drain_s
    at = 0.0
    while at < end and world.any_open():
        at = min(end, at + _SLICE_S)
        world.run(until=at)
        progress(at)


def _config(settings: Settings, specs: list[EngineSpec]) -> SchedulerConfig:
    """The production settings, less the longest queue: the estimates begin with the constants of each device."""
    paces = {spec.device: spec.latency or {} for spec in specs}
    constants = tuple(ConstantsOf(name, device, k) for device, pace in paces.items() for name, k in pace.items())
    policy = settings.tuned or policy_settings(settings.policy)
    if isinstance(policy, SlackSettings):
        policy = replace(policy, warm=settings.warm)
    return SchedulerConfig(
        policy=policy,
        hold_s=settings.hold_s,
        max_queue=1 << 30,
        admission=settings.admission,
        kv_gate=settings.kv_gate,
        constants=constants,
    )


def _served(device: Device, kind: Kind) -> Served:
    block_bytes = kind.kv_bytes_per_token * device.block_tokens
    slabs = -(-kind.weight_bytes // device.slab_bytes)
    shape = KvShape(f"kv-{kind.kv_bytes_per_token}")
    footprint = Footprint(
        kind.weight_bytes, slabs, shape, block_bytes, device.block_tokens, kind.context_tokens, task=kind.task
    )
    return Served(footprint, kind.latency)


def _engines(settings: Settings, machines: Machines, kinds: dict[ModelName, str]) -> list[EngineSpec]:
    split = settings.split
    roles = [Role.PREFILL] * split.prefill + [Role.DECODE] * split.decode + [Role.UNIFIED] * split.unified
    specs: list[EngineSpec] = []
    for device, these in [(machines.first, roles), *((m.device, [Role.UNIFIED] * m.count) for m in machines.more)]:
        nodes = len({spec.node for spec in specs})
        maker = _Maker(device, device.charges.get(settings.policy, Charge()), kinds, len(specs))
        at = _nodes(these, device.gpus_per_node)
        specs += [maker.engine(i, role, nodes + node) for i, (role, node) in enumerate(zip(these, at, strict=True))]
    return specs


def _nodes(roles: list[Role], size: int) -> list[int]:
    """The node of each engine. KV is handed off within a node, so each node of `size` places has its share of each
    role."""
    nodes = -(-len(roles) // size)
    counts, seen = Counter(roles), Counter[Role]()
    nodes_of = []
    for role in roles:
        nodes_of.append(seen[role] // size if role is Role.UNIFIED else seen[role] * nodes // counts[role])
        seen[role] += 1
    return nodes_of


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes engines of one device. `engines` are there already."""

    device: Device
    charge: Charge
    kinds: dict[ModelName, str]
    engines: int

    def engine(self, index: int, role: Role, node: int) -> EngineSpec:
        """The engine of this number among those of its device."""
        device = self.device
        return EngineSpec(
            InstanceId(f"gpu-{self.engines + index:03}"),
            role,
            device.model_bytes // device.slab_bytes,
            device.host_kv_bytes // device.slab_bytes,
            device.slab_bytes,
            device.max_batch,
            node=f"node-{node}",
            device=device.name,
            gpus=device.gpus,
            switch_s=device.change_s,
            first_s=device.first_s,
            stall_bytes_per_s=device.load_stall_bytes_per_s,
            one_link=device.one_link,
            node_bytes_per_s=device.node_bytes_per_s,
            host_cache_bytes=device.host_cache_bytes,
            disk_bytes_per_s=device.disk_bytes_per_s,
            load_tax=self.charge.load_tax,
            models=self._bound(node),
            latency={n: device.kinds[k].latency for n, k in self.kinds.items() if k in device.kinds},
        )

    def _bound(self, node: int) -> frozenset[ModelName] | None:
        """The models of a node, where each is bound to one."""
        nodes = self.charge.nodes
        if nodes == 1:
            return None
        return frozenset(n for m, n in enumerate(self.kinds) if m % nodes == node % nodes)
