"""The engine: memory, models, sequences and lanes of one sidecar, put together.

It executes commands (switch.py) and schedules nothing. `State` holds everything that its parts share.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from aegaeon_native import CudaDevice, EventTable
from aegaeon_native.leases import locked
from aegaeon_proto.engine import commands, reports
from aegaeon_proto.engine.ids import CommandId, InstanceId, ModelName
from aegaeon_proto.engine.sequences import Place
from aegaeon_sidecar.backends import Backend
from aegaeon_sidecar.backends.device import enter, memory_infos
from aegaeon_sidecar.config import SidecarConfig
from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.domain.program import Lane, Program
from aegaeon_sidecar.engine.compute import Compute
from aegaeon_sidecar.engine.dispatch import Dispatcher
from aegaeon_sidecar.engine.hello import hello
from aegaeon_sidecar.engine.lanes import Lanes
from aegaeon_sidecar.engine.outbox import Outbox
from aegaeon_sidecar.engine.outputs import PushTokens
from aegaeon_sidecar.engine.running_turn import ChunkLimits
from aegaeon_sidecar.engine.state import Queued, State
from aegaeon_sidecar.engine.steps import Steps
from aegaeon_sidecar.engine.sweeper import Sweeper, sweep
from aegaeon_sidecar.engine.switch import Switch
from aegaeon_sidecar.engine.turn import Turn
from aegaeon_sidecar.engine.warm_up import WarmUp
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.kv.moves import KvMoves
from aegaeon_sidecar.kv.reuse import PrefixReuse
from aegaeon_sidecar.kv.sequences import SequenceTable
from aegaeon_sidecar.kv.writeback import Writeback
from aegaeon_sidecar.kv.writeback_queue import WritebackQueue
from aegaeon_sidecar.memory.copier import Copier
from aegaeon_sidecar.memory.gpu import Gpus, device_pool, host_pool, make_of, open_gpus
from aegaeon_sidecar.memory.leases import Lending
from aegaeon_sidecar.memory.numa import run_near
from aegaeon_sidecar.memory.outside import Outside
from aegaeon_sidecar.memory.prefault import Prefaulter
from aegaeon_sidecar.memory.segments import Attachments, leases_path, segment_files, segment_path
from aegaeon_sidecar.memory.tiers import Tier
from aegaeon_sidecar.sampling.grammars import Grammars
from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.deaths import Deaths
from aegaeon_sidecar.weights.disk import DiskTier
from aegaeon_sidecar.weights.evictions import Evictions
from aegaeon_sidecar.weights.fetcher import Fetcher
from aegaeon_sidecar.weights.host_cache_report import HostCacheReport
from aegaeon_sidecar.weights.images import Images
from aegaeon_sidecar.weights.phases import Phases
from aegaeon_sidecar.weights.retries import Retries
from aegaeon_sidecar.weights.ring import StageRing
from aegaeon_sidecar.weights.sources import Sources
from aegaeon_sidecar.weights.table import ModelTable

log = logging.getLogger(__name__)

_EVENTS = 64  # for each rank
_COPYING = (Lane.WEIGHTS, Lane.KV_OUT, Lane.KV_IN)
_NOBODY = -1  # owner of what the sidecar issues itself


class Engine:
    """One sidecar's engine. Made, `start`ed and `stop`ped once; `apply` takes the scheduler's commands."""

    def __init__(
        self,
        config: SidecarConfig,
        incarnation: str,
        backend: Backend,
        outbox: Outbox,
        push: PushTokens,
        crashed: Callable[[BaseException], None],
    ) -> None:
        """Cut the memory and build the lanes. Raises SettingsError, NativeError or OSError when it is not to be had."""
        self._config = config
        self._incarnation, self._started = incarnation, time.time()
        self._outbox = outbox
        gpus = open_gpus(config.device, config.ranks)
        run_near(gpus)  # before memory is touched and threads begin
        self._make = make_of(gpus)
        sweep(config.segments)
        self._segment = segment_path(config.segments, config.instance, incarnation)
        with locked(config.segments):
            self._lending = Lending(leases_path(self._segment))
            self.state = _state(config, self._segment, self._lending, gpus)
        self.deaths = Deaths(config.segments, config.instance, time.monotonic)
        self._attachments = Attachments(config.segments, gpus)
        self._sweeper = Sweeper(config.segments, self._tidy, crashed)
        self._prefaulter = Prefaulter(self.state.kv.device.pool, self.state.kv.host.pool)
        self._events = EventTable.private(_EVENTS * config.ranks)
        self._copiers = {lane: Copier(lane.value, self._events, gpus) for lane in _COPYING}
        self._cache = HostCache(config.segments, config.memory.host_cache_bytes, gpus[0])  # locked for all of them
        self._held = HostCacheReport(self.state.table, self._cache)
        self._ring = _ring(config, gpus[0] if config.ranks == 1 else None)
        self._phases = Phases(self.state.table, outbox.post, _hidden(config))
        sources = Sources(config.hub_cache, _disk(config), config.sources.outbound)
        self._fetcher = self._fetcher_of(backend, sources, crashed)
        self._evictions = Evictions(
            self.state.table, self.state.kv.sequences, self._cache, sources, self._fetcher.put_off
        )
        self._retries = Retries(self.state.table, self._fetcher.again, crashed)
        self._grammars = Grammars()
        self._dispatcher = Dispatcher(self.state, self._fetcher, self._copiers, self._grammars, push, self._post)
        handler, entered = self._switch(backend, push).carry_out, partial(enter, config.device)
        spare = {Lane.KV_OUT: Writeback(self.state.kv, self._copiers[Lane.KV_OUT])}
        self._lanes = Lanes(self.state, handler, self._post, crashed, entered, spare)

    def _fetcher_of(self, backend: Backend, sources: Sources, crashed: Callable[[BaseException], None]) -> Fetcher:
        """Over this engine's table, cache and phases, with a ring of its own."""
        return Fetcher(
            self.state.table,
            self.state.kv,
            self.state.update_pins,
            backend,
            self._cache,
            _ring(self._config),
            sources,
            self._phases,
            self.deaths,
            crashed,
            partial(enter, self._config.device),
            _captured(self._config, backend),
        )

    def start(self) -> None:
        """Start the lanes and the background threads."""
        self._lanes.start()
        self._fetcher.start()
        self._retries.start()
        self._sweeper.start()
        self._prefaulter.start()
        self._cache.page_locks.start()

    def await_memory(self) -> None:
        """Wait until all slabs have memory behind them: for measurements that follow."""
        self._prefaulter.join()

    def apply(self, command: commands.Command, attachment: int) -> None:
        """A command of the scheduler; see Dispatcher."""
        self._dispatcher.apply(command, attachment)

    def quiesce(self) -> None:
        """A new scheduler comes: drop what is queued, let what runs end (a turn at its token boundary), wait for it."""
        with self.state.monitor.changed:
            for item in self.state.program.drop_queued():
                if isinstance(item.body, Turn):
                    item.body.ended = True
            self.state.monitor.notify_lanes(self.state.program)
            self.state.monitor.wait_until(lambda: self.state.running == 0)
            self.state.program = Program(self.state.program.instance)

    def hello(self, attachment: int) -> reports.Hello:
        """Begin an attachment on a quiet engine: reports are kept from here on, and this is the first."""
        with self.state.monitor.changed:
            self._outbox.begin(attachment)
            self._held.forget()
            return hello(self._config, self._make, self._incarnation, self._started, self._segment.name, self.state)

    def heartbeat(self) -> None:
        """Report that it lives, and what is free. Not on the event loop: it waits for the engine's lock.

        A busy engine's other reports say both, some ten a second: a heartbeat that repeats one is left out. Reports are
        posted under the lock under which their memory was read: none says what was free before another.
        """
        self.state.outside.sample()
        with self.state.monitor.changed:
            self.state.kv.sequences.reclaim_loans()
            memory = self.state.memory()
            if not self._outbox.repeats(memory, self._config.heartbeat_s / 2):
                self._outbox.post(reports.MemoryReported(self.state.program.instance, memory))

    def host_cache(self) -> reports.HostReported | None:
        """The content of the host cache, if it changed. Waits while another sidecar holds the cache folder's lock: for
        seconds when that sidecar evicts a large image."""
        self._evictions.look()
        held = self._held.news()
        return None if held is None else reports.HostReported(self._config.node, tuple(map(ModelName, held)))

    def park(self) -> None:
        """The scheduler has been unavailable for longer than the lease: KV goes to the host, where it is held."""
        with self.state.monitor.changed:
            for sequence in [s for s in self.state.kv.sequences if s.place is Place.DEVICE]:
                swap = commands.SwapOut(sequence.key, sequence.epoch)
                self._dispatcher.issue(CommandId(self.state.program.last_id + 1), (), Lane.KV_OUT, swap, _NOBODY)
            self.state.monitor.notify_lanes(self.state.program)

    @property
    def holds(self) -> int:
        """Sequences that are here, on whichever tier."""
        with self.state.monitor.changed:
            return len(self.state.kv.sequences)

    def check(self) -> None:
        """Assert conservation of slabs and blocks. Raises MemoryBookError or NativeError."""
        self.state.check()

    def stop(self, timeout_s: float) -> bool:
        """End after the current step and chunk; the segment's file is removed. True when nothing runs any more."""
        with self.state.monitor.changed:
            self.state.monitor.stopping = True
            for item in self.state.program.drop_queued():
                item.cancelled = True
                if item.lane in self._copiers:
                    self._copiers[item.lane].cancel(item)
            self.state.monitor.notify_lanes(self.state.program)
        self._grammars.stop()
        self._sweeper.stop()
        self._prefaulter.stop()
        self._cache.page_locks.stop()
        fetched = self._retries.stop(timeout_s) & self._fetcher.stop(timeout_s)
        ended = self._lanes.join(timeout_s) and fetched
        if ended:
            self._close()
        for path in (*segment_files(self._segment, self._config.ranks), leases_path(self._segment)):
            path.unlink(missing_ok=True)
        return ended

    def _close(self) -> None:
        for copier in self._copiers.values():
            copier.close()
        for model in self.state.table.all:
            model.let_go()
        for adapter in self.state.table.adapters:
            adapter.let_go()
        self._ring.close()
        self.deaths.close()
        self._attachments.close()
        self._events.close()
        self.state.kv.device.close()
        self.state.kv.host.close()
        self._lending.close()

    def _tidy(self) -> None:
        """Now and then, with or without a scheduler."""
        self._attachments.drop_removed()
        self._cache.page_locks.unlock_evicted()
        with self.state.monitor.changed:
            self.state.kv.sequences.reclaim_loans()
            self._fetcher.adapters.update()

    def _post(self, command: Queued, report: reports.Report) -> None:
        self._outbox.post(report, command.owner)

    def _switch(self, backend: Backend, push: PushTokens) -> Switch:
        config = self._config
        chunk_tokens = config.prefill_chunk_tokens
        compute = Compute(
            self.state,
            Steps(self.state.kv, backend, push, config.max_batch),
            WarmUp(self.state, backend),
            self._post,
            PrefixReuse(self.state.kv, self._copiers[Lane.KV_IN]),
            ChunkLimits(chunk_tokens, config.max_pooled_tokens or chunk_tokens),
            self.deaths,
        )
        images = Images(self.state.table, self._cache, self._ring, self._phases)
        kv = KvMoves(self.state.kv, config.node, self._segment.name, self._attachments)
        return Switch(self.state, images, self._phases, kv, compute, self._copiers, self._fetcher.put_off)


def _captured(config: SidecarConfig, backend: Backend) -> tuple[int, ...]:
    """The separately captured decodes that this engine computes."""
    if config.role == "prefill":
        return ()
    return tuple(least for least in backend.captured if least <= config.max_batch)


def _hidden(config: SidecarConfig) -> dict[Path, str]:
    """Folders of this machine, and what tenants read instead."""
    hidden = {config.segments: "the host cache"}
    if config.disk.folder is not None:
        hidden[config.disk.folder] = "the disk tier"
    if config.hub_cache is not None:
        hidden[config.hub_cache] = "the hub's folder"
    return hidden


def _disk(config: SidecarConfig) -> DiskTier | None:
    folder = config.disk.folder
    return None if folder is None else DiskTier(folder, config.disk.budget_bytes, time.sleep)


def _ring(config: SidecarConfig, gpu: CudaDevice | None = None) -> StageRing:
    memory = config.memory
    return StageRing(memory.stage_chunk_bytes, memory.stage_depth, gpu=gpu)


def _state(config: SidecarConfig, segment: Path, lending: Lending, gpus: Gpus) -> State:
    memory = config.memory
    slab_bytes, ranks = memory.slab_bytes, config.ranks
    files, host_slabs = segment_files(segment, ranks), memory.host_kv_bytes // ranks // slab_bytes
    infos = memory_infos(config.device, ranks)
    slabs = config.slab_count(min((info()[0] for info in infos), default=None))
    device = Tier("device", device_pool(gpus, config.instance, slab_bytes, slabs))
    host = Tier("host", host_pool(gpus, files, slab_bytes, host_slabs))
    monitor = Monitor()
    sequences = SequenceTable(device, host, lending, WritebackQueue(monitor))
    kv = KvMemory(monitor, device, host, sequences, memory.prefix_reuse)
    outside = Outside(config.reserved_bytes, slabs * slab_bytes, infos)
    return State(monitor, kv, ModelTable(monitor), outside, Program(InstanceId(config.instance)))
