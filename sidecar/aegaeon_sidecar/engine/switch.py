"""A switch from one model to another, top down: KV out, weights in, KV in, then the next batch decodes.

A few verbs cover the native parts: take and give back slabs, map and unmap them in a range, allocate and release
blocks, copy bytes and wait for them with `finish`. docs/engine-memory.md has a picture of the memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext

from aegaeon_native import NativeError, Range
from aegaeon_proto.engine.catalog import ModelPhase
from aegaeon_proto.engine.commands import Adopt, Load, SwapIn, SwapOut, Unload
from aegaeon_proto.engine.sequences import Place
from aegaeon_sidecar.domain.errors import AbsentError, CancelledError, CommandError, EngineError, UnknownError
from aegaeon_sidecar.domain.program import Lane
from aegaeon_sidecar.engine.compute import Compute
from aegaeon_sidecar.engine.outcome import Outcome
from aegaeon_sidecar.engine.state import Queued, State
from aegaeon_sidecar.engine.turn import Turn
from aegaeon_sidecar.kv.handles import resume, units
from aegaeon_sidecar.kv.moves import KvMoves
from aegaeon_sidecar.kv.sequences import Sequence
from aegaeon_sidecar.memory.copier import Copier
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.weights.image import Image
from aegaeon_sidecar.weights.images import Images
from aegaeon_sidecar.weights.mapping import map_slabs
from aegaeon_sidecar.weights.models import Model
from aegaeon_sidecar.weights.phases import Phases
from aegaeon_sidecar.weights.shared_weights import drop, leave, share, take

_ALL = 2**31 - 1


class Switch:
    """Carries out the commands of the four lanes. For a switch from model A to model B the scheduler sends

    | command           | lane    | what happens here                                                            |
    |-------------------|---------|------------------------------------------------------------------------------|
    | SwapOut(seq of A) | kv-out  | its blocks to the host; its device blocks are free                           |
    | Unload(A)         | weights | after the last step that reads them: the slabs are free, their bytes kept    |
    | Load(B)           | weights | slabs mapped into B's permanent range, the bytes not there still copied in   |
    | SwapIn(seq of B)  | kv-in   | its blocks from the host to the device; Adopt: from another sidecar's host   |
    | Turn(B)           | compute | waits for the load; decodes from the first sequence that is in; others join  |

    Each lane is a thread with a copier of its own, so whatever no `after` forbids runs side by side: the KV of A leaves
    while its slabs of weights are filled with B's, and B's KV comes in during its load. B may also be loaded while A
    still decodes (prefetch), and A stay when there is room for both: then a switch is the Turn alone.
    """

    def __init__(
        self,
        state: State,
        images: Images,
        phases: Phases,
        kv: KvMoves,
        compute: Compute,
        copiers: Mapping[Lane, Copier],
        put_off: Callable[[Model], None],
    ) -> None:
        """`put_off` is called, lock held, with a model whose copies on this node were evicted."""
        self._state = state
        self._images = images
        self._phases = phases
        self._kv = kv
        self._compute = compute
        self._copiers = copiers
        self._put_off = put_off

    def carry_out(self, command: Queued) -> Outcome:
        """One command, on its lane's thread. Raises CommandError or NativeError: it failed."""
        try:
            return self._carry_out(command)
        finally:
            if command.cancelled and command.lane in self._copiers:
                self._copiers[command.lane].forget(command)

    def _carry_out(self, command: Queued) -> Outcome:
        match command.body:
            case SwapOut() as swap:
                return self._swap_out(command, swap)
            case Unload() as unload:
                return self._unload(command, unload)
            case Load() as load:
                return self._load_or_tell(command, load)
            case SwapIn() as swap:
                return self._swap_in(command, swap)
            case Adopt() as adopt:
                return self._adopt(command, adopt)
            case Turn() as turn:
                return self._compute.turn(command, turn)
        raise EngineError(f"no lane carries out {type(command.body).__name__}")

    # -- A leaves ---------------------------------------------------------------------------------------------------

    def _swap_out(self, command: Queued, swap: SwapOut) -> Outcome:
        """Device to host; the device blocks are free when it is done. Raises the errors of `begin`, NoMemoryError."""
        with self._state.monitor.changed:
            sequence = self._kv.begin(command, swap.seq, swap.epoch)
            if sequence.place is Place.HOST:
                return Outcome(handle=self._kv.handle(sequence))
            if sequence.place is Place.NONE:
                raise UnknownError(f"sequence {swap.seq.request}/{swap.seq.choice} has no KV cache to move")
            device, host = self._kv.pools(sequence)
            self._state.kv.sequences.trim(sequence)
            count, full = sequence.blocks.size, sequence.full_blocks
            sequence.host_blocks, new = self._kv.reserve(self._state.kv.host, sequence, count, full, _ALL)
            sequence.moving = True
        with self._copying(Lane.KV_OUT, sequence, Place.DEVICE) as copier:
            copier.copy_blocks(command, host, sequence.host_blocks[new], device, sequence.blocks[new])
        with self._state.monitor.changed:
            self._kv.end(command, sequence, Place.DEVICE, Place.HOST)
            return Outcome(nbytes=new.size * host.block_bytes, handle=self._kv.handle(sequence))

    def _unload(self, command: Queued, unload: Unload) -> Outcome:
        """Give a model's slabs back after the last step that uses them. Nothing happens when it is not resident.

        They stay mapped, and free slabs without content are taken first: what is still free when the model is loaded
        again is there still. Slabs that others show as well stay theirs.
        """
        with self._state.monitor.changed:
            model = self._registered(unload.model)
            if not model.resident:
                return Outcome()
            model.leaving = True
            free = self._state.monitor.wait(lambda: model.users == 0, command)
            model.leaving = False
            if not free:
                raise CancelledError(f"the unload of {model.name} was cancelled")
            model.resident = False
            leave(self._state.kv.device, model)
            self._state.update_pins()
        return Outcome()

    # -- B comes ----------------------------------------------------------------------------------------------------

    def _load_or_tell(self, command: Queued, load: Load) -> Outcome:
        """Fail a model whose loads fail repeatedly, so that no request waits for it without end."""
        try:
            return self._load(command, load)
        except CancelledError:
            raise
        except AbsentError:
            with self._state.monitor.changed:
                if (model := self._state.table.models.get(load.model)) is not None:
                    self._put_off(model)
            raise
        except (CommandError, NativeError) as error:
            if (model := self._state.table.models.get(load.model)) is not None:
                self._phases.not_loaded(model, error)
            raise

    def _load(self, command: Queued, load: Load) -> Outcome:
        """Make a model resident with at most `load.slabs` slabs; nothing happens when it is already.

        With a twin its slabs are shown as well, and nothing is copied. From the host cache it is one copy, of what was
        not kept since it was unloaded; what is not cached is read from its files by way of the stage ring. Raises
        UnknownError, NoMemoryError (nothing changed), CancelledError, EngineError (its slabs are given back).
        """
        with self._state.monitor.changed:
            model = self._registered(load.model)
            if load.identity not in ("", model.spec.identity):
                raise UnknownError(f"model {load.model} is another one here; the catalog has changed")
            if model.resident:
                return Outcome()
            loaded = self._enter(model, load)
            model.moving = True
        try:
            moved = self._bring(command, model, load.past_host, loaded)
            self._now_resident(command, model)
        except BaseException:
            self._give_back(model)
            raise
        return Outcome(nbytes=moved)

    def _enter(self, model: Model, load: Load) -> int:
        """Take its slabs; returns how many bytes, from the beginning, are in them already."""
        if load.twin:
            share(self._state.table, model, load.twin)
            return _layout(model).weight_bytes
        return take(self._state.table, self._state.kv.device, model, load.slabs) * self._state.kv.device.pool.slab_bytes

    def _bring(self, command: Queued, model: Model, past_host: bool, loaded: int) -> int:
        """Map its slabs and move all bytes after the first `loaded`, which are in them; returns the bytes moved."""
        begin, nbytes, known = time.monotonic(), _layout(model).weight_bytes, model.content
        image = self._images.image(command, model, past_host) if loaded < nbytes else None
        if image is not None and image.content != known:  # the files are not, or may not be, those that were kept
            loaded = 0
        moved = self._map(command, model, image, loaded)
        if image is None and loaded < nbytes:
            self._images.stream(command, model, past_host)
            moved = nbytes  # the files are read whole
        if moved and model.image is not None:
            model.image.lock_soon()  # for the next load
        model.copy_s = time.monotonic() - begin - model.map_s
        return moved

    def _map(self, command: Queued, model: Model, image: Image | None, loaded: int) -> int:
        """Map its slabs, and copy the bytes of its image after the first `loaded`; all slabs but the first piece's are
        mapped beside the copies. Returns the bytes copied."""
        begin, copier, done = time.monotonic(), self._copiers[Lane.WEIGHTS], loaded
        model.map_s = 0.0
        with nullcontext() if image is None else image.copied():
            try:
                for mapped in map_slabs(model, self._state.kv.device.pool.slab_bytes):
                    end = min(mapped, _layout(model).weight_bytes)
                    if image is not None and end > done:
                        model.map_s = model.map_s or time.monotonic() - begin
                        copier.copy_image(command, _range(model), image.address, _layout(model).weight_bytes, done, end)
                        done = end
            finally:
                copier.finish()  # nothing is under way to slabs that are given back
        model.map_s = model.map_s or time.monotonic() - begin
        return done - loaded

    def _give_back(self, model: Model) -> None:
        """Give back the slabs of a load that failed."""
        _range(model).unmap(0, len(model.shown))
        with self._state.monitor.changed:
            drop(self._state.kv.device, model)
            model.shown, model.moving = [], False
            self._state.update_pins()

    def _now_resident(self, command: Queued, model: Model) -> None:
        with self._state.monitor.changed:
            if command.cancelled or model.forgotten:
                raise CancelledError(f"the load of {model.name} was cancelled")
            model.moving, model.resident, model.misses = False, True, 0
            model.loaded_s = time.monotonic()
            self._state.update_pins()

    def _swap_in(self, command: Queued, swap: SwapIn) -> Outcome:
        """Copy from this sidecar's host to its device, mapping at most `swap.slabs` further slabs; the host blocks are
        freed."""
        with self._state.monitor.changed:
            sequence = self._kv.begin(command, swap.seq, swap.epoch)
            if sequence.place is Place.DEVICE:
                return Outcome()
            if sequence.place is Place.NONE:
                raise UnknownError(f"sequence {swap.seq.request}/{swap.seq.choice} has no KV cache on the host")
            device, host = self._kv.pools(sequence)
            count, full = sequence.host_blocks.size, sequence.full_blocks
            sequence.blocks, new = self._kv.reserve(self._state.kv.device, sequence, count, full, swap.slabs)
            sequence.moving = True
        with self._copying(Lane.KV_IN, sequence, Place.HOST) as copier:
            copier.copy_blocks(command, device, sequence.blocks[new], host, sequence.host_blocks[new])
        with self._state.monitor.changed:
            self._kv.end(command, sequence, Place.HOST, Place.DEVICE)
        return Outcome(nbytes=new.size * host.block_bytes)

    def _adopt(self, command: Queued, adopt: Adopt) -> Outcome:
        """Another sidecar's host blocks to this device. The source keeps its copy until it is sent Close."""
        with ExitStack() as lease:
            with self._state.monitor.changed:
                sequence = self._kv.begin(command, adopt.seq, adopt.epoch)
                if sequence.place is not Place.NONE:
                    raise UnknownError(f"sequence {adopt.seq.request}/{adopt.seq.choice} has its KV cache here already")
                device, _ = self._kv.pools(sequence)
                source = lease.enter_context(self._kv.borrowed(sequence, adopt.handle, device.block_bytes))
                count, full = len(adopt.handle.blocks), adopt.handle.kv_tokens // sequence.block_tokens
                sequence.blocks, new = self._kv.reserve(self._state.kv.device, sequence, count, full, adopt.slabs)
                sequence.moving = True
            with self._copying(Lane.KV_IN, sequence, Place.NONE) as copier:
                pieces = units(adopt.handle, source, device, sequence.blocks, new)
                copier.copy_units(command, device, source, pieces)
        with self._state.monitor.changed:
            self._kv.end(command, sequence, Place.NONE, Place.DEVICE)
            resume(sequence, adopt.handle)
            self._state.kv.sequences.publish(self._state.kv.device, sequence)
        return Outcome(nbytes=new.size * device.block_bytes)

    @contextmanager
    def _copying(self, lane: Lane, sequence: Sequence, before: Place) -> Iterator[Copier]:
        """A copy of a sequence, which is over at the end. Where it fails the sequence stays where it was."""
        copier = self._copiers[lane]
        try:
            try:
                yield copier
            finally:
                copier.finish()
        except NativeError:
            with self._state.monitor.changed:
                self._kv.stays(sequence, before)
                self._state.kv.sequences.free_if_closed(sequence)
                self._state.monitor.notify()
            raise

    # -- who is meant -----------------------------------------------------------------------------------------------

    def _registered(self, name: str) -> Model:
        model = self._state.table.models.get(name)
        if model is None or model.range is None or model.phase == ModelPhase.FAILED:
            phase = "not in the catalog" if model is None else f"not ready ({model.reason or 'on its way'})"
            raise UnknownError(f"model {name} is {phase}")
        return model


def _range(model: Model) -> Range:
    assert model.range is not None  # it is registered
    return model.range


def _layout(model: Model) -> Layout:
    assert model.layout is not None  # it is registered
    return model.layout
