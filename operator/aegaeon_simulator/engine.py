"""A modelled sidecar in virtual time: four lanes, `after`, grants, epochs. It asserts the rules of the wire as it goes,
so the simulator and the property tests of the core fail where a real sidecar would have misbehaved."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import (
    CommandId,
    FailureKind,
    Held,
    InstanceId,
    Memory,
    ModelName,
    Phase,
    SeqId,
)
from aegaeon_simulator.clock import Clock
from aegaeon_simulator.compute import TokenSink
from aegaeon_simulator.copies import CopyLanes
from aegaeon_simulator.errors import WireViolationError
from aegaeon_simulator.host import HostCache
from aegaeon_simulator.links import Link, Node
from aegaeon_simulator.memory import Tier, report
from aegaeon_simulator.spec import LANES, EngineSpec, Prompt, Running, Sequence, Served, lane_of
from aegaeon_simulator.use import Use


class Engine(CopyLanes):
    """One modelled sidecar. `emit` takes its reports, `prompt_of` plays the driver, `peer` finds other engines."""

    def __init__(
        self,
        spec: EngineSpec,
        models: dict[ModelName, Served],
        clock: Clock,
        emit: Callable[[ev.Event], None],
        prompt_of: Callable[[SeqId, int], Prompt | None],
        peer: Callable[[InstanceId], Engine | None],
        sink: TokenSink,
        incarnation: str = "1",
        fault: Callable[[cmd.Send], FailureKind | None] = lambda send: None,
        node: Node | None = None,
        cache: HostCache | None = None,
    ) -> None:
        self.spec = spec
        self.models = models
        self.clock = clock
        self.incarnation = incarnation
        self.alive = True
        self.attachment = 0
        self.device = Tier(spec.slabs, spec.slab_bytes)
        self.host = Tier(spec.host_slabs, spec.slab_bytes)
        self.resident: dict[ModelName, ModelName] = {}  # each with the name that its slabs were taken under
        self.sequences: dict[SeqId, Sequence] = {}
        self.lanes: dict[str, deque[cmd.Send]] = {lane: deque() for lane in LANES}
        self.active: dict[str, cmd.Send | None] = dict.fromkeys(LANES)
        self.seen: dict[CommandId, bool | None] = {}  # None: pending; True: done; False: failed
        self.turn: Running | None = None
        self.last_model: ModelName | None = None
        self.use = Use(spec.device, spec.gpus)
        self.cache = cache
        self.link = Link(clock, spec.one_link, node)
        self._stall_s = 0.0  # the compute lane owes so much before it goes on
        self._last_id = 0
        self.pulled: dict[CommandId, FailureKind] = {}
        self._emit, self._prompt_of, self._peer, self._sink, self._fault = emit, prompt_of, peer, sink, fault

    # -- what it says ------------------------------------------------------------------------------------------------

    def memory(self) -> Memory:
        """What is free now."""
        return report(self.device, self.host)

    def hello(self) -> list[ev.Event]:
        """The events of an attachment."""
        s = self.spec
        self._nudge()
        held = tuple(Held(q.seq, q.epoch, q.model, q.prompt, q.output, q.kv, q.place) for q in self.sequences.values())
        up = ev.InstanceUp(
            s.instance, self.incarnation, s.node, s.role, s.device, s.slab_bytes, s.slabs, s.host_slabs, s.max_batch,
            self.memory(), tuple(self.resident), held, tuple(self.resident.items()),
        )  # fmt: skip
        models = [ev.ModelReported(s.instance, m, Phase.CACHED, v.footprint) for m, v in self.models.items()]
        return [up, *models]

    def heartbeat(self) -> None:
        """Report memory."""
        self._say(ev.MemoryReported(self.spec.instance, self.memory()))

    def kill(self) -> None:
        """The process is gone: nothing more is said."""
        self._nudge()
        self.alive = False

    def drop_program(self) -> None:
        """The stream broke: what has not begun is forgotten."""
        for lane in self.lanes.values():
            lane.clear()

    def busy(self) -> bool:
        """Whether any lane still runs something."""
        return any(send is not None for send in self.active.values())

    def _say(self, event: ev.Event) -> None:
        if self.alive:
            self._emit(event)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self.clock.at(self.clock.now + seconds, lambda: action() if self.alive else None)

    # -- its inputs ------------------------------------------------------------------------------------------------

    def receive(self, send: cmd.Send, attachment: int) -> None:
        """A command arrives on a stream; one that has broken since loses it."""
        if attachment == self.attachment:
            self.send(send)

    def send(self, send: cmd.Send) -> None:
        """A command arrives."""
        if not self.alive:
            return
        if send.id <= self._last_id:
            raise WireViolationError(f"command id {send.id} does not rise")
        self._last_id = send.id
        for id in send.after:
            if id not in self.seen:
                raise WireViolationError(f"command {send.id} waits for {id}, which was never issued here")
        lane = lane_of(send.body)
        if lane is None:
            self.seen[send.id] = True
            self._at_once(send)
        else:
            self.seen[send.id] = None
            self.lanes[lane].append(send)
            if lane == "compute" and len(self.lanes[lane]) + (self.turn is not None) > 2:
                raise WireViolationError("more than two turns on the compute lane")
        self._start()

    def _at_once(self, send: cmd.Send) -> None:
        body = send.body
        self._touch(body)
        if isinstance(body, cmd.Open):
            self._open(send, body)
        elif isinstance(body, cmd.Close):
            self._close(body)
        elif isinstance(body, cmd.Amend):
            self._amend(body)
        elif isinstance(body, cmd.Cancel):
            self.pulled[body.id] = FailureKind.CANCELLED

    def _touch(self, body: cmd.Body) -> None:
        """What concerns the running turn acts at its next token boundary."""
        turn = self.turn
        if turn is None:
            return
        if isinstance(body, (cmd.Open, cmd.Close)):
            if body.seq in turn.decode:
                self._nudge()
        elif isinstance(body, cmd.Amend) and body.turn == turn.id:
            self._nudge()

    def _open(self, send: cmd.Send, body: cmd.Open) -> None:
        held = self.sequences.get(body.seq)
        prompt = self._prompt_of(body.seq, body.epoch)
        if prompt is None:  # the gateway has moved on to a newer epoch
            self._fail(send, FailureKind.STALE, "older epoch")
            return
        if held is not None and not held.closing:
            if held.epoch > body.epoch:
                self._fail(send, FailureKind.STALE, "older epoch")
                return
            if held.output >= prompt.prefix_tokens and held.model == body.model:
                held.epoch = body.epoch
                again = [self.clock.now] * (held.output - prompt.prefix_tokens)
                self._sink(body.seq, body.epoch, prompt.prefix_tokens, again, None)
                return
            raise WireViolationError(f"{body.seq} is opened with a prefix longer than what is held")
        self.sequences[body.seq] = Sequence(
            body.seq, body.epoch, body.model, prompt.prompt_tokens, prompt.prefix_tokens, prompt.length
        )

    def _close(self, body: cmd.Close) -> None:
        q = self.sequences.get(body.seq)
        if q is None or q.epoch > body.epoch:
            return
        if q.copying is not None:
            q.closing = True
            return
        self._drop(q)

    def _drop(self, q: Sequence) -> None:
        fp = self.models[q.model].footprint
        if q.blocks:
            self.device.shrink(fp, q.blocks)
        if q.host:
            self.host.shrink(fp, q.host)
        if self.sequences.get(q.seq) is q:
            del self.sequences[q.seq]

    def _amend(self, body: cmd.Amend) -> None:
        turn = self.turn
        if turn is not None and turn.id == body.turn:
            turn.slabs += body.slabs
            turn.steps = turn.steps if body.steps is None else body.steps
            turn.decode += [s for s in body.join if s not in turn.decode]
            turn.decode = [s for s in turn.decode if s not in body.leave]
            turn.parts = deque(p for p in turn.parts if p.seq not in body.leave)
            return
        queue = self.lanes["compute"]
        for i, send in enumerate(queue):
            if send.id == body.turn:
                t = send.body
                assert isinstance(t, cmd.Turn)
                decode = tuple(s for s in (*t.decode, *body.join) if s not in body.leave)
                steps = t.steps if body.steps is None else body.steps
                parts = tuple(p for p in t.prefill if p.seq not in body.leave)
                changed = cmd.Turn(t.model, parts, decode, steps, t.slabs + body.slabs)
                queue[i] = cmd.Send(send.instance, send.id, changed, send.after, send.reason)

    # -- lanes -------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        moved = True
        while moved:
            moved = False
            for lane in LANES:
                if self.active[lane] is None and self.lanes[lane]:
                    moved = self._try(lane) or moved

    def _try(self, lane: str) -> bool:
        send = self.lanes[lane][0]
        states = [(id, self.seen[id]) for id in send.after]
        failed = next((id for id, state in states if state is False), None)
        if failed is not None:
            self.lanes[lane].popleft()
            self.seen[send.id] = False
            self._say(ev.CommandSkipped(self.spec.instance, send.id, failed))
            self._nudge()
            return True
        if any(state is None for _, state in states):
            if lane == "compute":
                self.use.block(self.clock.now)
            return False
        self.lanes[lane].popleft()
        fault = self.pulled.pop(send.id, None) or self._fault(send)
        if fault is not None:
            self._fail(send, fault, "injected")
            return True
        self.active[lane] = send
        if not self._begin(send):
            self.active[lane] = None
        return True

    def _fail(self, send: cmd.Send, kind: FailureKind, reason: str) -> None:
        self.seen[send.id] = False
        event = ev.CommandFailed(self.spec.instance, send.id, kind, reason, self.memory())
        self.clock.at(self.clock.now, lambda: self._say(event))
        self._nudge()

    def _end(self, send: cmd.Send, seconds: float, nbytes: int = 0, kv: int = 0) -> None:
        self.active[lane_of(send.body) or ""] = None
        self.seen[send.id] = True
        self._say(ev.CommandDone(self.spec.instance, send.id, seconds, self.memory(), nbytes, kv))
        self._start()

    def _begin(self, send: cmd.Send) -> bool:
        body = send.body
        if isinstance(body, cmd.Load):
            return self._load(send, body)
        if isinstance(body, cmd.Unload):
            return self._unload(send, body)
        if isinstance(body, cmd.SwapOut):
            return self._swap_out(send, body)
        if isinstance(body, cmd.SwapIn):
            return self._copy_in(send, body.seq, body.epoch, body.slabs, None)
        if isinstance(body, cmd.Adopt):
            return self._adopt(send, body)
        assert isinstance(body, cmd.Turn)
        return self._begin_turn(send, body)
