"""The scheduler's own core over a workload: the same object as in production, on modelled engines in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import ConstantsOf, PolicySettings, SchedulerConfig
from aegaeon_scheduler.core.errors import ConfigError
from aegaeon_scheduler.core.model import Footprint, InstanceId, KvShape, ModelName, Role
from aegaeon_simulator.device import Charge, Device, Kind
from aegaeon_simulator.errors import SettingsError
from aegaeon_simulator.outcome import Outcome
from aegaeon_simulator.outcome import Served as Request
from aegaeon_simulator.settings import Settings
from aegaeon_simulator.spec import EngineSpec, Served
from aegaeon_simulator.workload import Workload
from aegaeon_simulator.world import Client, World

_NEVER_S = 1e9  # nobody is refused for having waited: what comes late counts as late
_SLICE_S = 1.0  # of virtual time between two looks at the progress


def simulate_production(
    settings: Settings, workload: Workload, device: Device, progress: Callable[[float], None]
) -> Outcome:
    """Run the core's policy. Raises SettingsError for one that it does not know, DeviceError for a model too large."""
    charge = device.charges.get(settings.policy, Charge())
    names = [ModelName(f"model-{m:03}") for m in range(len(workload.kinds))]
    served = {n: _served(device, device.kind(k)) for n, k in zip(names, workload.kinds, strict=True)}
    events = 0

    def observe(now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        nonlocal events
        events += 1

    pool = {name: (s, settings.slo_of(m)) for m, (name, s) in enumerate(served.items())}
    specs = _engines(settings, device, charge, names)
    try:
        world = World(_config(settings, served), pool, specs, settings.delay_s, 0.5, observe=observe)
    except ConfigError as error:
        raise SettingsError(f"--policy {settings.policy}: {error}") from error
    clients = [
        world.request(f"r{i}", names[a.model], a.input_tokens, a.output_tokens, a.t_s)
        for i, a in enumerate(workload.arrivals)
    ]
    _run(world, workload, settings, progress)
    requests = [_request(a.model, c) for a, c in zip(workload.arrivals, clients, strict=True)]
    return Outcome(requests, [e.use for e in world.engines.values()], world.clock.now, events)


def _request(model: int, client: Client) -> Request:
    return Request(model, client.length, client.arrival, client.times, client.rejected is not None)


def _run(world: World, workload: Workload, settings: Settings, progress: Callable[[float], None]) -> None:
    end = (workload.arrivals[-1].t_s if workload.arrivals else 0.0) + settings.drain_s
    at = 0.0
    while at < end and world.any_open():
        at = min(end, at + _SLICE_S)
        world.run(until=at)
        progress(at)


def _config(settings: Settings, served: dict[ModelName, Served]) -> SchedulerConfig:
    """The production settings, less the refusals: the estimates begin with the device's constants."""
    constants = tuple(ConstantsOf(name, "", s.latency) for name, s in served.items())
    policy = PolicySettings(name=settings.policy)
    return SchedulerConfig(
        policy=policy, hold_s=_NEVER_S, max_queue=1 << 30, admission=settings.admission, constants=constants
    )


def _served(device: Device, kind: Kind) -> Served:
    block_bytes = kind.kv_bytes_per_token * device.block_tokens
    slabs = -(-kind.weight_bytes // device.slab_bytes)
    shape = KvShape(f"kv-{kind.kv_bytes_per_token}")
    footprint = Footprint(kind.weight_bytes, slabs, shape, block_bytes, device.block_tokens, kind.context_tokens)
    return Served(footprint, kind.latency)


def _engines(settings: Settings, device: Device, charge: Charge, names: list[ModelName]) -> list[EngineSpec]:
    split = settings.split
    roles = [Role.PREFILL] * split.prefill + [Role.DECODE] * split.decode + [Role.UNIFIED] * split.unified
    return [_engine(i, role, device, charge, names) for i, role in enumerate(roles)]


def _engine(index: int, role: Role, device: Device, charge: Charge, names: list[ModelName]) -> EngineSpec:
    mine = index % charge.nodes
    return EngineSpec(
        InstanceId(f"gpu-{index:03}"),
        role,
        device.model_bytes // device.slab_bytes,
        device.host_kv_bytes // device.slab_bytes,
        device.slab_bytes,
        device.max_batch,
        node=f"node-{index // device.gpus_per_node}",
        device=device.name,
        switch_s=device.change_s,
        stall_bytes_per_s=device.load_stall_bytes_per_s,
        one_link=device.one_link,
        node_bytes_per_s=device.node_bytes_per_s,
        host_cache_bytes=device.host_cache_bytes,
        disk_bytes_per_s=device.disk_bytes_per_s,
        load_tax=charge.load_tax,
        models=frozenset(n for m, n in enumerate(names) if m % charge.nodes == mine) if charge.nodes > 1 else None,
    )
