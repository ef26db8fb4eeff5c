"""A modelled sidecar in virtual time: four lanes, `after`, grants, epochs. It asserts the rules of the protocol, so the
simulator and the property tests of the core fail where a real sidecar would have misbehaved."""

from __future__ import annotations

from collections.abc import Callable

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import CommandId, FailureKind, Held, ModelName, Phase, SeqId
from aegaeon_simulator.clock import Clock
from aegaeon_simulator.engine.compute import ComputeLane, TokenSink
from aegaeon_simulator.engine.copies import CopyLanes, PeerState
from aegaeon_simulator.engine.host_cache import HostCache
from aegaeon_simulator.engine.lanes import Lanes
from aegaeon_simulator.engine.links import Link, Node
from aegaeon_simulator.engine.spec import LANES, EngineSpec, Prompt, Sequence, Served, lane_of
from aegaeon_simulator.engine.state import EngineState
from aegaeon_simulator.engine.writeback import Writeback
from aegaeon_simulator.errors import WireViolationError


class Engine:
    """One modelled sidecar. `emit` takes its reports, `prompt_of` plays the driver, `peer` finds other engines."""

    def __init__(
        self,
        spec: EngineSpec,
        models: dict[ModelName, Served],
        clock: Clock,
        emit: Callable[[ev.Event], None],
        prompt_of: Callable[[SeqId, int], Prompt | None],
        peer: PeerState,
        sink: TokenSink,
        incarnation: str = "1",
        fault: Callable[[cmd.Send], FailureKind | None] = lambda send: None,
        node: Node | None = None,
        cache: HostCache | None = None,
    ) -> None:
        self.spec = spec
        self.incarnation = incarnation
        self.attachment = 0
        self.state = EngineState(spec, models, clock, emit, self._cached)
        self._lanes = Lanes()
        self.compute = ComputeLane(self.state, self._lanes, sink, self._turn_over)
        link = Link(clock, spec.one_link, node)
        self._writeback = Writeback(self.state, self._lanes, link)
        self._copies = CopyLanes(self.state, self.compute, link, cache, peer, self)
        self._cancelled: dict[CommandId, FailureKind] = {}
        self._prompt_of, self._sink, self._fault = prompt_of, sink, fault

    def _cached(self, q: Sequence) -> None:
        self._writeback.add(q)

    # -- what it says ------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self.state.alive

    def hello(self) -> list[ev.Event]:
        """The events of an attachment."""
        s, state = self.spec, self.state
        self.compute.interrupt()
        held = tuple(Held(q.seq, q.epoch, q.model, q.prompt, q.output, q.kv, q.place) for q in state.sequences.values())
        up = ev.InstanceUp(
            s.instance, self.incarnation, s.node, s.role, s.device, s.slab_bytes, s.slabs, s.host_slabs, s.max_batch,
            state.memory(), tuple(state.resident), held, tuple(state.resident.items()),
        )  # fmt: skip
        models = [
            ev.ModelReported(s.instance, m, Phase.CACHED, v.footprint, cold=self.compute.is_cold(m))
            for m, v in state.models.items()
        ]
        return [up, *models]

    def heartbeat(self) -> None:
        """Report memory."""
        self.state.say(ev.MemoryReported(self.spec.instance, self.state.memory()))

    def kill(self) -> None:
        """The process is gone: nothing more is said."""
        self.compute.interrupt()
        self.state.alive = False

    def drop_program(self) -> None:
        """The stream broke: what has not begun is forgotten."""
        self._lanes.clear()

    def busy(self) -> bool:
        """True while any lane has work."""
        return self._lanes.busy()

    # -- its inputs ------------------------------------------------------------------------------------------------

    def receive(self, send: cmd.Send, attachment: int) -> None:
        """A command arrives on a stream; one that has broken since loses it."""
        if attachment == self.attachment:
            self.send(send)

    def send(self, send: cmd.Send) -> None:
        """A command arrives."""
        if not self.alive:
            return
        if self._lanes.accept(send) is None:
            self._at_once(send)
        self._start()

    def _at_once(self, send: cmd.Send) -> None:
        body = send.body
        self.compute.touch(body)
        if isinstance(body, cmd.Open):
            self._open(send, body)
        elif isinstance(body, cmd.Close):
            self._close(body)
        elif isinstance(body, cmd.Amend):
            self.compute.amend(body)
            self._lanes.amend(body)
        elif isinstance(body, cmd.Cancel):
            self._cancelled[body.id] = FailureKind.CANCELLED

    def _open(self, send: cmd.Send, body: cmd.Open) -> None:
        held = self.state.sequences.get(body.seq)
        prompt = self._prompt_of(body.seq, body.epoch)
        if prompt is None:  # the gateway has moved on to a newer epoch
            self.fail(send, FailureKind.STALE, "older epoch")
        elif held is not None and not held.closing:
            self._reopen(send, body, held, prompt)
        else:
            self.state.sequences[body.seq] = Sequence(
                body.seq, body.epoch, body.model, prompt.prompt_tokens, prompt.prefix_tokens, prompt.length,
                content=prompt.content,
            )  # fmt: skip

    def _reopen(self, send: cmd.Send, body: cmd.Open, held: Sequence, prompt: Prompt) -> None:
        """A sequence that is here goes on; its reader gets again what it has not received."""
        if held.epoch > body.epoch:
            self.fail(send, FailureKind.STALE, "older epoch")
        elif held.output >= prompt.prefix_tokens and held.model == body.model:
            held.epoch = body.epoch
            again = [self.state.clock.now] * (held.output - prompt.prefix_tokens)
            self._sink(body.seq, body.epoch, prompt.prefix_tokens, again, None)
        else:
            raise WireViolationError(f"{body.seq} is opened with a prefix longer than what is held")

    def _close(self, body: cmd.Close) -> None:
        q = self.state.sequences.get(body.seq)
        if q is None or q.epoch > body.epoch:
            return
        if q.copying is not None:
            q.closing = True
            return
        self.state.drop(q)

    # -- lanes -------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        moved = True
        while moved:
            moved = False
            for lane in LANES:
                if self._lanes.active[lane] is None and self._lanes.queues[lane]:
                    moved = self._try(lane) or moved

    def _try(self, lane: str) -> bool:
        queue, active = self._lanes.queues[lane], self._lanes.active
        send = queue[0]
        failed = self._lanes.failed_before(send)
        if failed is not None:
            queue.popleft()
            self._skip(send, failed)
            return True
        if self._lanes.waits(send):
            if lane == "compute":
                self.compute.wait()
            return False
        queue.popleft()
        fault = self._cancelled.pop(send.id, None) or self._fault(send)
        if fault is not None:
            self.fail(send, fault, "injected")
            return True
        active[lane] = send
        if not self._begin(send):
            active[lane] = None
        return True

    def _skip(self, send: cmd.Send, failed: CommandId) -> None:
        self._lanes.end(send.id, done=False)
        self.state.say(ev.CommandSkipped(self.spec.instance, send.id, failed))
        self.compute.interrupt()

    def fail(self, send: cmd.Send, kind: FailureKind, reason: str) -> None:
        """The command could not be carried out; it takes effect at once and is said after what runs now."""
        self._lanes.end(send.id, done=False)
        event = ev.CommandFailed(self.spec.instance, send.id, kind, reason, self.state.memory())
        clock = self.state.clock
        clock.at(clock.now, lambda: self.state.say(event))
        self.compute.interrupt()

    def end(self, send: cmd.Send, seconds: float, nbytes: int = 0, kv: int = 0) -> None:
        """A copying command is done; its lane goes on."""
        self._lanes.active[lane_of(send.body) or ""] = None
        self._lanes.end(send.id, done=True)
        self.state.say(ev.CommandDone(self.spec.instance, send.id, seconds, self.state.memory(), nbytes, kv))
        self._start()
        self._writeback.go_on()

    def _turn_over(self, turn: CommandId) -> None:
        self._lanes.active["compute"] = None
        self._lanes.end(turn, done=True)
        self._start()

    def _begin(self, send: cmd.Send) -> bool:
        match send.body:
            case cmd.Load() as body:
                return self._copies.load(send, body)
            case cmd.Unload() as body:
                return self._copies.unload(send, body)
            case cmd.SwapOut() as body:
                return self._copies.swap_out(send, body)
            case cmd.SwapIn() as body:
                return self._copies.swap_in(send, body)
            case cmd.Adopt() as body:
                return self._copies.adopt(send, body)
            case cmd.Turn() as body:
                self.compute.begin(send, body)
                return True
        raise WireViolationError(f"{type(send.body).__name__} has no lane")
