"""The owner of every sequence in this sidecar, and of the sequences' KV blocks.

Lookup is by id; the epoch guards a sequence, so messages of an older epoch are refused. Blocks are freed in one place,
at once or when the step or copy that still touches them is over (rule 3 of docs/engine-memory.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Protocol

from aegaeon_native import Event
from aegaeon_proto.engine.ids import SeqId
from aegaeon_proto.engine.sampling import PoolingParams
from aegaeon_proto.engine.sequences import Place
from aegaeon_proto.engine.tokens import Said
from aegaeon_sidecar.backends import AdapterWeights
from aegaeon_sidecar.domain.errors import StaleError, UnknownError
from aegaeon_sidecar.kv.writeback_queue import WritebackQueue
from aegaeon_sidecar.memory.cache_blocks import Blocks
from aegaeon_sidecar.memory.leases import Lending
from aegaeon_sidecar.memory.prefix import Name, name_block, seed_with
from aegaeon_sidecar.memory.tiers import NO_BLOCKS, Owned, Tier
from aegaeon_sidecar.sampling import Sampled, SamplerState


class UsedAdapter(Protocol):
    """An adapter as its sequences know it."""

    @property
    def ready(self) -> bool:
        """True when `weights` is final: the adapter is loaded, or will not be."""
        ...

    def weights(self) -> AdapterWeights:
        """The weights for a step. Raises BackendError."""
        ...

    def is_same(self, other: object) -> bool:
        """True when sequences of one can continue with the other."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence's tokens, sampler and blocks.

    `kv_tokens` tokens of prompt + output have their KV in; a decode step needs all but the last one. `logprobs`: of the
    tokens sampled here that have some, by output index, with those of the likeliest, so that they can be sent again;
    `sampled_here`: its first token, or a later one, was sampled here. `busy`: steps under way, which touch its
    blocks; `moving`: a copy does; `queued_moves`: copies that wait for steps; `closed`: to be freed when neither does.
    `lease`: by which other sidecars may read its host blocks. `adapter`: of its model, if any.
    `scored`: logprobs of the prompt's tokens from the second on, as far as they are computed; None: not requested.
    `seed`: what the names of its blocks begin with, empty when they are not to be shared; `salt`: what those behind the
    first `public_blocks` depend on besides, so that only sequences of the same salt find them; `names`: of its full
    blocks, as far as they were asked for; `looked`: for what is cached of it; `reused`: tokens of the prompt found so;
    `token_s`: seconds to compute one. `begun_s`: when the first step of its prefill began, of the monotonic clock;
    `prefill_s`: from then to its first token; `load_s`: what it waited for its model's weights before. `turn`: that of
    its newest step; `idle_since_s`: when that ended, or it was opened; `stall_s`: from there to the next turn's first.
    `pooling`: what is wanted instead of text; its KV is needed while the prompt is computed, and never afterwards.
    """

    key: SeqId
    epoch: int
    model: str
    kv_shape: str
    block_tokens: int
    prompt: list[int]
    output: list[int]
    sampler: SamplerState
    stop_ids: frozenset[int]
    max_output: int
    reply_to: str
    adapter: UsedAdapter | None = None
    place: Place = Place.NONE
    kv_tokens: int = 0
    blocks: Blocks = field(default_factory=lambda: NO_BLOCKS)
    host_blocks: Blocks = field(default_factory=lambda: NO_BLOCKS)
    lease: Event | None = None
    logprobs: dict[int, tuple[float | None, tuple[tuple[int, float], ...]]] = field(default_factory=dict)
    sampled_here: bool = False
    scored: list[Said] | None = None
    busy: int = 0
    moving: bool = False
    queued_moves: int = 0
    closed: bool = False
    seed: bytes = b""
    salt: bytes = b""
    public_blocks: int = 0
    names: list[Name] = field(default_factory=list)
    looked: bool = False
    reused: int = 0
    token_s: float = 0.0
    begun_s: float = 0.0
    prefill_s: float = 0.0
    load_s: float = 0.0
    turn: object = None
    idle_since_s: float = field(default_factory=time.monotonic)
    stall_s: float = 0.0
    pooling: PoolingParams | None = None

    @property
    def ready(self) -> bool:
        """Its next token can be chosen: its adapter and its compiled constraint, if any, are here, or will not be."""
        if self.adapter is not None and not self.adapter.ready:
            return False
        return self.sampler.guide is None or self.sampler.guide.ready

    def enter(self, turn: object, loaded_s: float, now: float) -> None:
        """Its first step in a turn begins `now`; the weights of its model came in at `loaded_s` (monotonic clock)."""
        self.turn = turn
        self.stall_s = now - self.idle_since_s
        if not self.begun_s:
            self.begun_s = now
            self.load_s = max(min(loaded_s, now) - self.idle_since_s, 0.0)

    @property
    def length(self) -> int:
        """Prompt and output together, tokens."""
        return len(self.prompt) + len(self.output)

    def tokens(self, count: int) -> list[int]:
        """The next `count` tokens whose KV is to be computed."""
        start = self.kv_tokens - len(self.prompt)
        if start >= 0:
            return self.output[start : start + count]
        head = self.prompt[self.kv_tokens : self.kv_tokens + count]
        return head + self.output[: count - len(head)]

    def to_score(self, count: int) -> list[int] | None:
        """Tokens of the prompt that follow each of the next `count`; None where nothing is wanted of them."""
        return None if self.scored is None else self.prompt[self.kv_tokens + 1 : self.kv_tokens + 1 + count]

    @property
    def full_blocks(self) -> int:
        """Leading blocks that are full: they are not written again, and may be shared."""
        return self.kv_tokens // self.block_tokens if self.seed else 0

    def named(self, blocks: int) -> list[Name]:
        """The names of its first `blocks` blocks; it must have the tokens for them."""
        while len(self.names) < blocks:
            start = len(self.names) * self.block_tokens
            head = self.prompt[start : start + self.block_tokens]
            rest = start + len(head) - len(self.prompt)
            block = head + self.output[rest : rest + self.block_tokens - len(head)] if rest >= 0 else head
            before = self.names[-1] if self.names else self.seed
            if self.salt and len(self.names) == self.public_blocks:
                before = seed_with(before, self.salt)
            self.names.append(name_block(before, block))
        return self.names[:blocks]

    def accept(self, sampled: Sampled) -> int:
        """Keep a sampled token; returns its index."""
        index = len(self.output)
        self.output.append(sampled.token)
        self.sampled_here = True
        if sampled.logprob is not None:
            self.logprobs[index] = sampled.logprob, sampled.top
        self.sampler.accept(sampled.token)
        return index

    def holds(self, prefix: Seq[int]) -> bool:
        """True when it can continue for a client that has `prefix`: same tokens, and all later ones can be sent
        again."""
        if not prefix and self.scored is not None and self.output and len(self.scored) < len(self.prompt) - 1:
            return False
        later = range(len(prefix), len(self.output))
        return self.output[: len(prefix)] == list(prefix) and (
            self.sampler.params.logprobs is None or all(i in self.logprobs for i in later)
        )


class SequenceTable:
    """Every open sequence, and the closed ones whose blocks are still being touched. Guarded by the engine's lock."""

    def __init__(self, device: Tier, host: Tier, lending: Lending, writeback: WritebackQueue) -> None:
        """`writeback` takes the names of blocks that stay cached on the device."""
        self.writeback = writeback
        self._device = device
        self._host = host
        self._lending = lending
        self._open: dict[SeqId, Sequence] = {}
        self._dying: set[Sequence] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._open.values())

    def get(self, key: SeqId) -> Sequence | None:
        return self._open.get(key)

    def require(self, key: SeqId, epoch: int) -> Sequence:
        """The sequence at exactly this epoch. Raises UnknownError or StaleError."""
        sequence = self._open.get(key)
        if sequence is None or epoch > sequence.epoch:
            raise UnknownError(
                f"sequence {key.request}/{key.choice} is not open here at epoch {epoch}; send Open first"
            )
        if epoch < sequence.epoch:
            raise StaleError(f"sequence {key.request}/{key.choice} is at epoch {sequence.epoch}, not {epoch}")
        return sequence

    def add(self, sequence: Sequence) -> None:
        """Take a new sequence in; one of the same id is closed."""
        self.remove(sequence.key)
        self._open[sequence.key] = sequence

    def remove(self, key: SeqId) -> None:
        """Forget a sequence and free its blocks in both tiers, after a step or copy that is running on it."""
        sequence = self._open.pop(key, None)
        if sequence is not None:
            sequence.closed = True
            self._dying.add(sequence)
            self.free_if_closed(sequence)

    def free_if_closed(self, sequence: Sequence) -> None:
        """Free a closed sequence once no step or copy touches it; called when one of these ends."""
        if sequence.closed and not sequence.busy and not sequence.moving:
            self.free_device(sequence)
            self.free_host(sequence)
            sequence.place = Place.NONE
            self._dying.discard(sequence)

    def free_device(self, sequence: Sequence) -> None:
        """Give the device blocks back."""
        if sequence.blocks.size:
            self._release(self._device, sequence, sequence.blocks, sequence.full_blocks)
            sequence.blocks = NO_BLOCKS
            self.writeback.add(sequence.kv_shape, sequence.names[: sequence.full_blocks])

    def free_host(self, sequence: Sequence) -> None:
        """Give the host blocks back; those that another sidecar reads at this moment, when it has read them."""
        if not sequence.host_blocks.size:
            return
        release = partial(self._release, self._host, sequence, sequence.host_blocks, sequence.full_blocks)
        if sequence.lease is None:
            release()
        else:
            self._lending.recall(sequence.lease, sequence.kv_shape, sequence.host_blocks.tolist(), release)
        sequence.host_blocks, sequence.lease = NO_BLOCKS, None

    def lend(self, sequence: Sequence) -> Event:
        """The lease by which others may read its host blocks. Raises NativeError when too many are out."""
        if sequence.lease is None:
            sequence.lease = self._lending.lend()
        return sequence.lease

    def reclaim_loans(self) -> None:
        """Free what was being read when it was given back, and is not any more."""
        self._lending.reclaim()

    def publish(self, tier: Tier, sequence: Sequence, first: int = 0) -> None:
        """Publish full blocks from `first` on, so that sequences with the same tokens can find them."""
        full = sequence.full_blocks
        if full > first:
            blocks = sequence.blocks if tier is self._device else sequence.host_blocks
            tier.index(sequence.kv_shape).publish(sequence.named(full)[first:], blocks[first:full].tolist())

    def trim(self, sequence: Sequence) -> None:
        """Give back device blocks beyond those that hold something: they were taken for a prompt whose turn ended."""
        needed = -(-sequence.kv_tokens // sequence.block_tokens)
        if sequence.blocks.size > needed:
            self._device.blocks(sequence.kv_shape).release(sequence.blocks[needed:])
            sequence.blocks = sequence.blocks[:needed]

    def _release(self, tier: Tier, sequence: Sequence, blocks: Blocks, published: int) -> None:
        tier.release(sequence.kv_shape, blocks, published, sequence.token_s * sequence.block_tokens)

    def adapters(self) -> set[object]:
        """The adapters that sequences use, including closed sequences with a step in flight."""
        return {
            sequence.adapter for sequence in chain(self._open.values(), self._dying) if sequence.adapter is not None
        }

    def replies_to(self, target: str) -> bool:
        """True while a sequence answers to this gateway. May be called without the lock."""
        return any(sequence.reply_to == target for sequence in list(self._open.values()))

    def owned(self) -> tuple[dict[str, Owned], dict[str, Owned]]:
        """The blocks that sequences own, by KV shape: (device, host). For conservation checks."""
        device: dict[str, Owned] = {}
        host: dict[str, Owned] = {}
        for sequence in chain(self._open.values(), self._dying):
            owned = device.setdefault(sequence.kv_shape, Owned())
            owned.blocks += sequence.blocks.tolist()
            if not sequence.moving:
                owned.writable += sequence.blocks[sequence.kv_tokens // sequence.block_tokens :].tolist()
            host.setdefault(sequence.kv_shape, Owned()).blocks += sequence.host_blocks.tolist()
        for kv_shape, blocks in self._lending.owned():
            host.setdefault(kv_shape, Owned()).blocks += blocks
        if self.writeback.onto is not None:
            kv_shape, copied = self.writeback.onto
            host.setdefault(kv_shape, Owned()).blocks += copied.tolist()
        return device, host
