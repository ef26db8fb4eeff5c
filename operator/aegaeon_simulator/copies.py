"""The copying lanes of a modelled sidecar: weights in and out of the device, KV between device and host tier."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.domain import FailureKind, InstanceId, ModelName, Place, SeqId
from aegaeon_simulator.compute import ComputeLane
from aegaeon_simulator.errors import WireViolationError
from aegaeon_simulator.host import HostCache
from aegaeon_simulator.links import Link
from aegaeon_simulator.memory import Tier
from aegaeon_simulator.spec import Sequence

if TYPE_CHECKING:
    from aegaeon_simulator.engine import Engine


class CopyLanes(ComputeLane):
    """What loads, unloads and moves KV; the engine decides when each command begins and says when it has ended."""

    alive: bool
    host: Tier
    link: Link
    cache: HostCache | None
    _peer: Callable[[InstanceId], Engine | None]

    @abstractmethod
    def _fail(self, send: cmd.Send, kind: FailureKind, reason: str) -> None: ...

    @abstractmethod
    def _end(self, send: cmd.Send, seconds: float, nbytes: int = 0, kv: int = 0) -> None: ...

    def _load(self, send: cmd.Send, body: cmd.Load) -> bool:
        served = self.models[body.model]
        if body.model in self.resident:
            raise WireViolationError(f"{body.model} is loaded twice")
        if body.twin is not None:
            return self._share(send, body, body.twin)
        if body.slabs < served.footprint.weight_slabs:
            raise WireViolationError(f"the load of {body.model} was granted too little")
        self.device.take_weights(served.footprint.weight_slabs)
        nbytes, began = served.footprint.weight_bytes, self.clock.now

        def done() -> None:
            self.resident[body.model] = body.model
            if self.spec.stall_bytes_per_s:
                self._stall_s += nbytes / self.spec.stall_bytes_per_s
            self._stall_s += self.spec.load_tax * (self.clock.now - began)
            self._end(send, self.clock.now - began, nbytes)

        def copy() -> None:
            self._copy(nbytes, served.latency.load_bytes_per_s, done)

        if self.cache is None:
            copy()
        elif not self.cache.want(body.model, nbytes, copy, body.past_host):
            self.use.disk_loads += 1
        return True

    def _share(self, send: cmd.Send, body: cmd.Load, twin: ModelName) -> bool:
        """The slabs of a resident model of the same content are shown under another name."""
        content = self.models[body.model].footprint.content
        if twin not in self.resident or not content or self.models[twin].footprint.content != content:
            raise WireViolationError(f"{body.model} is to share the weights of {twin}, which are not there")
        self.resident[body.model] = self.resident[twin]
        self._later(0.0, lambda: self._end(send, 0.0))
        return True

    def _copy(self, nbytes: int, bytes_per_s: float, done: Callable[[], None]) -> None:
        self.link.copy(nbytes, bytes_per_s, lambda: done() if self.alive else None)

    def _unload(self, send: cmd.Send, body: cmd.Unload) -> bool:
        if body.model not in self.resident:
            self._fail(send, FailureKind.UNKNOWN, f"{body.model} is not resident")
            return False
        if self.turn is not None and self.turn.body.model == body.model:
            raise WireViolationError(f"{body.model} is unloaded while its turn runs")
        shared = self.resident.pop(body.model)
        if shared not in self.resident.values():
            self.device.drop_weights(self.models[body.model].footprint.weight_slabs)
        self._later(0.0, lambda: self._end(send, 0.0))
        return True

    def _known(self, send: cmd.Send, seq: SeqId, epoch: int) -> Sequence | None:
        q = self.sequences.get(seq)
        if q is None or q.closing:
            self._fail(send, FailureKind.UNKNOWN, f"{seq} is not open here")
            return None
        if epoch < q.epoch:
            self._fail(send, FailureKind.STALE, f"{seq} has epoch {q.epoch}")
            return None
        if q.copying is not None:
            raise WireViolationError(f"{seq} is copied twice at once")
        return q

    def _swap_out(self, send: cmd.Send, body: cmd.SwapOut) -> bool:
        q = self._known(send, body.seq, body.epoch)
        if q is None:
            return False
        if q.place is Place.NONE and q.epoch > 1:  # it ended as its gateway came back: opened anew, it has nothing yet
            self._fail(send, FailureKind.UNKNOWN, f"{body.seq} has no KV cache to move")
            return False
        if q.place is not Place.DEVICE:
            raise WireViolationError(f"{body.seq} is swapped out from {q.place}")
        if self.turn is not None and body.seq in self.turn.decode:
            raise WireViolationError(f"{body.seq} is swapped out while its turn runs")
        fp = self.models[q.model].footprint
        if self.host.grow(fp, q.blocks, self.host.free) is None:
            self._fail(send, FailureKind.NO_MEMORY, "the host tier is full")
            return False
        q.host, q.copying = q.blocks, send.id
        nbytes, began = q.blocks * fp.kv_block_bytes, self.clock.now

        def done() -> None:
            self.device.shrink(fp, q.blocks)
            q.blocks, q.place, q.copying, q.handle_of = 0, Place.HOST, None, send.id
            kv = q.kv
            if q.closing:
                self._drop(q)
            self._end(send, self.clock.now - began, nbytes, kv)

        self._copy(nbytes, self.models[q.model].latency.kv_bytes_per_s, done)
        return True

    def _adopt(self, send: cmd.Send, body: cmd.Adopt) -> bool:
        q = self._known(send, body.seq, body.epoch)
        if q is None:
            return False
        source = self._peer(body.source)
        theirs = source.sequences.get(body.seq) if source is not None else None
        if theirs is None or theirs.handle_of != body.handle_of:
            self._fail(send, FailureKind.UNKNOWN, "the source does not hold this handle")
            return False
        if source is not None and source.spec.node != self.spec.node:
            raise WireViolationError(f"{body.seq} is adopted from {source.spec.node} by {self.spec.node}")
        q.kv, q.output = theirs.kv, theirs.output
        return self._copy_in(send, body.seq, body.epoch, body.slabs, theirs)

    def _copy_in(self, send: cmd.Send, seq: SeqId, epoch: int, slabs: int, theirs: Sequence | None) -> bool:
        q = self._known(send, seq, epoch)
        if q is None:
            return False
        if theirs is None and q.place is not Place.HOST:
            raise WireViolationError(f"{seq} is swapped in from {q.place}")
        fp = self.models[q.model].footprint
        blocks = -(-q.kv // fp.kv_block_tokens)
        if self.device.grow(fp, blocks, slabs) is None:
            self._fail(send, FailureKind.NO_MEMORY, f"the grant of {slabs} slabs is too small")
            return False
        q.copying, q.blocks = send.id, blocks
        nbytes, began = blocks * fp.kv_block_bytes, self.clock.now

        def done() -> None:
            if q.host:
                self.host.shrink(fp, q.host)
            q.host, q.place, q.copying, q.handle_of = 0, Place.DEVICE, None, None
            if q.closing:
                self._drop(q)
            if self.turn is not None and seq in self.turn.decode:
                self._nudge()
            self._end(send, self.clock.now - began, nbytes)

        self._copy(nbytes, self.models[q.model].latency.kv_bytes_per_s, done)
        return True
