"""The copying lanes of a modelled engine: weights in and out of the device, KV between device and host tier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.domain import FailureKind, InstanceId, ModelName, Place, SeqId
from aegaeon_simulator.engine.compute import ComputeLane
from aegaeon_simulator.engine.host_cache import HostCache
from aegaeon_simulator.engine.links import Link
from aegaeon_simulator.engine.spec import Sequence
from aegaeon_simulator.engine.state import EngineState
from aegaeon_simulator.errors import WireViolationError

PeerState = Callable[[InstanceId], EngineState | None]


class Completion(Protocol):
    """Receives the end of a copying command."""

    def fail(self, send: cmd.Send, kind: FailureKind, reason: str) -> None:
        """Report that the command failed."""

    def end(self, send: cmd.Send, seconds: float, nbytes: int = 0, kv: int = 0) -> None:
        """Report the end after `seconds`: bytes copied, tokens of KV moved out."""


class CopyLanes:
    """Loads, unloads and moves KV; the engine decides when each command begins.

    Every method returns True when the command runs, False when it has already failed.
    """

    def __init__(
        self,
        state: EngineState,
        compute: ComputeLane,
        link: Link,
        cache: HostCache | None,
        peer: PeerState,
        completion: Completion,
    ) -> None:
        self._state = state
        self._compute = compute
        self._link = link
        self._cache = cache
        self._peer = peer
        self._completion = completion

    def load(self, send: cmd.Send, body: cmd.Load) -> bool:
        """Copy the weights to the device, from host memory or from the node's disk before that."""
        served = self._state.models[body.model]
        if body.model in self._state.resident:
            raise WireViolationError(f"{body.model} is loaded twice")
        if body.twin is not None:
            return self._share(send, body, body.twin)
        if body.slabs < served.footprint.weight_slabs:
            raise WireViolationError(f"the load of {body.model} was granted too little")
        self._state.device.take_weights(served.footprint.weight_slabs)
        spec, nbytes, began = self._state.spec, served.footprint.weight_bytes, self._state.clock.now

        def done() -> None:
            self._state.resident[body.model] = body.model
            if spec.stall_bytes_per_s:
                self._compute.stall(nbytes / spec.stall_bytes_per_s)
            self._compute.stall(spec.load_tax * (self._state.clock.now - began))
            self._completion.end(send, self._state.clock.now - began, nbytes)

        def copy() -> None:
            self._copy(nbytes, served.latency.load_bytes_per_s, done)

        if self._cache is None:
            copy()
        elif not self._cache.want(body.model, nbytes, copy, body.past_host):
            self._state.usage.disk_loads += 1
        return True

    def _share(self, send: cmd.Send, body: cmd.Load, twin: ModelName) -> bool:
        """The slabs of a resident model of the same content are shown under another name."""
        content = self._state.models[body.model].footprint.content
        if twin not in self._state.resident or not content or self._state.models[twin].footprint.content != content:
            raise WireViolationError(f"{body.model} is to share the weights of {twin}, which are not there")
        self._state.resident[body.model] = self._state.resident[twin]
        self._state.later(0.0, lambda: self._completion.end(send, 0.0))
        return True

    def _copy(self, nbytes: int, bytes_per_s: float, done: Callable[[], None]) -> None:
        self._link.copy(nbytes, bytes_per_s, lambda: done() if self._state.alive else None)

    def unload(self, send: cmd.Send, body: cmd.Unload) -> bool:
        """Give the weights' slabs back."""
        if body.model not in self._state.resident:
            self._completion.fail(send, FailureKind.UNKNOWN, f"{body.model} is not resident")
            return False
        if self._compute.runs(body.model):
            raise WireViolationError(f"{body.model} is unloaded while its turn runs")
        shared = self._state.resident.pop(body.model)
        if shared not in self._state.resident.values():
            self._state.device.drop_weights(self._state.models[body.model].footprint.weight_slabs)
        self._state.later(0.0, lambda: self._completion.end(send, 0.0))
        return True

    def _known(self, send: cmd.Send, seq: SeqId, epoch: int) -> Sequence | None:
        q = self._state.sequences.get(seq)
        if q is None or q.closing:
            self._completion.fail(send, FailureKind.UNKNOWN, f"{seq} is not open here")
            return None
        if epoch < q.epoch:
            self._completion.fail(send, FailureKind.STALE, f"{seq} has epoch {q.epoch}")
            return None
        if q.copying is not None:
            raise WireViolationError(f"{seq} is copied twice at once")
        return q

    def swap_out(self, send: cmd.Send, body: cmd.SwapOut) -> bool:
        """Copy a sequence's KV to the host tier."""
        q = self._known(send, body.seq, body.epoch)
        if q is None:
            return False
        if q.place is Place.NONE:  # its first part got no memory, or it ended as its gateway reconnected and opened it
            self._completion.fail(send, FailureKind.UNKNOWN, f"{body.seq} has no KV cache to move")
            return False
        if q.place is not Place.DEVICE:
            raise WireViolationError(f"{body.seq} is swapped out from {q.place}")
        if self._compute.decodes(body.seq):
            raise WireViolationError(f"{body.seq} is swapped out while its turn runs")
        fp = self._state.models[q.model].footprint
        if self._state.host.grow(fp, q.blocks, self._state.host.free) is None:
            self._completion.fail(send, FailureKind.NO_MEMORY, "the host tier is full")
            return False
        q.host, q.copying = q.blocks, send.id
        nbytes, began = q.blocks * fp.kv_block_bytes, self._state.clock.now

        def done() -> None:
            self._state.device.shrink(fp, q.blocks)
            self._state.keep_in(self._state.host, q)
            self._state.leave(self._state.device, q)
            q.blocks, q.place, q.copying, q.handle_of = 0, Place.HOST, None, send.id
            kv = q.kv
            if q.closing:
                self._state.drop(q)
            self._completion.end(send, self._state.clock.now - began, nbytes, kv)

        self._copy(nbytes, self._state.models[q.model].latency.kv_bytes_per_s, done)
        return True

    def swap_in(self, send: cmd.Send, body: cmd.SwapIn) -> bool:
        """Copy a sequence's KV from the host tier to the device."""
        return self._copy_in(send, body.seq, body.epoch, body.slabs, None)

    def adopt(self, send: cmd.Send, body: cmd.Adopt) -> bool:
        """Copy to the device what another engine of the node has in its host tier."""
        q = self._known(send, body.seq, body.epoch)
        if q is None:
            return False
        source = self._peer(body.source)
        theirs = source.sequences.get(body.seq) if source is not None else None
        if theirs is None or theirs.handle_of != body.handle_of:
            self._completion.fail(send, FailureKind.UNKNOWN, "the source does not hold this handle")
            return False
        if source is not None and source.spec.node != self._state.spec.node:
            raise WireViolationError(f"{body.seq} is adopted from {source.spec.node} by {self._state.spec.node}")
        q.kv, q.output = theirs.kv, theirs.output
        return self._copy_in(send, body.seq, body.epoch, body.slabs, theirs)

    def _copy_in(self, send: cmd.Send, seq: SeqId, epoch: int, slabs: int, theirs: Sequence | None) -> bool:
        q = self._known(send, seq, epoch)
        if q is None:
            return False
        if theirs is None and q.place is not Place.HOST:
            raise WireViolationError(f"{seq} is swapped in from {q.place}")
        fp = self._state.models[q.model].footprint
        blocks = -(-q.kv // fp.kv_block_tokens)
        if self._state.device.grow(fp, blocks, slabs) is None:
            self._completion.fail(send, FailureKind.NO_MEMORY, f"the grant of {slabs} slabs is too small")
            return False
        q.copying, q.blocks = send.id, blocks
        self._state.keep_in(self._state.device, q)
        nbytes, began = blocks * fp.kv_block_bytes, self._state.clock.now

        def done() -> None:
            if q.host:
                self._state.host.shrink(fp, q.host)
                self._state.leave(self._state.host, q)
            q.host, q.place, q.copying, q.handle_of = 0, Place.DEVICE, None, None
            if q.closing:
                self._state.drop(q)
            if self._compute.decodes(seq):
                self._compute.interrupt()
            self._completion.end(send, self._state.clock.now - began, nbytes)

        self._copy(nbytes, self._state.models[q.model].latency.kv_bytes_per_s, done)
        return True
