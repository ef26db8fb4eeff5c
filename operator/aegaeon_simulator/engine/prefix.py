"""The prefix cache of one tier of a modelled engine: KV blocks that keep their content until their memory is needed.

As in a sidecar (memory/prefix.py, memory/eviction.py): a block is worth uses x seconds to compute it and what follows /
age; what is worth least goes first, by slab. Blocks that lie on one slab are those of one text, in order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aegaeon_simulator.workload.content import Content, Span

AHEAD_SHARE = 0.005
"""of the tier by which more is evicted for grants than they need, so that the next ones rarely evict"""
_LEAST_AGE_S = 1e-3
Values = NDArray[np.float64]


@dataclass(slots=True)
class Text:
    """Blocks of one text from `first` on. While it has `users`, what they hold is not for eviction."""

    first: int
    block_bytes: int
    uses: Values = field(default_factory=lambda: np.zeros(0))
    lost_s: Values = field(default_factory=lambda: np.zeros(0))
    used_s: Values = field(default_factory=lambda: np.zeros(0))
    users: int = 0

    @property
    def end(self) -> int:
        """The block behind its last one."""
        return self.first + len(self.uses)

    @property
    def nbytes(self) -> int:
        """Bytes of its blocks."""
        return len(self.uses) * self.block_bytes

    def extend(self, end: int) -> None:
        """Blocks up to `end` are there."""
        more = end - self.end
        if more > 0:
            self.uses = np.concatenate((self.uses, np.ones(more)))
            self.lost_s = np.concatenate((self.lost_s, np.zeros(more)))
            self.used_s = np.concatenate((self.used_s, np.zeros(more)))

    def cut(self, blocks: int) -> None:
        """Its first `blocks` stay."""
        self.uses, self.lost_s, self.used_s = self.uses[:blocks], self.lost_s[:blocks], self.used_s[:blocks]

    def level(self, copy: Text) -> None:
        """A use of blocks that two tiers have counts in both."""
        both = min(len(self.uses), len(copy.uses))
        for name in ("uses", "lost_s", "used_s"):
            values, copied = getattr(self, name), getattr(copy, name)
            values[:both] = copied[:both] = np.maximum(values[:both], copied[:both])

    def values(self, now: float) -> Values:
        """The value of each of its blocks."""
        values: Values = self.uses * self.lost_s / np.maximum(now - self.used_s, _LEAST_AGE_S)
        return values

    def worth(self, now: float, per_slab: int) -> Values:
        """The value of each slab of its blocks: of one as of all behind it together, at most."""
        slabs = np.add.reduceat(self.values(now), np.arange(0, len(self.uses), per_slab))
        least: Values = np.maximum.accumulate(slabs[::-1])[::-1]
        return least


def find(caches: Iterable[PrefixCache], content: Content, block_tokens: int, blocks: int) -> int:
    """The leading blocks of this content that are in any of these."""
    run = 0
    for span in content.spans(block_tokens, blocks):
        run = max(run, min(span.end, max(cache.end(span.text) for cache in caches)))
        if run < span.end:
            break
    return run


class PrefixCache:
    """Texts that are cached, and their users. `slab_bytes`, `total_bytes`: of the tier."""

    def __init__(self, slab_bytes: int, total_bytes: int) -> None:
        self._slab_bytes = slab_bytes
        self._ahead = int(AHEAD_SHARE * total_bytes)
        self._texts: dict[int, Text] = {}
        self._users: dict[Hashable, tuple[Content, int, int]] = {}
        self.nbytes = 0  # of texts without users

    def end(self, text: int) -> int:
        """The block behind the last one of a text that is here; 0 where nothing of it is."""
        known = self._texts.get(text)
        return known.end if known is not None else 0

    def hold(self, user: Hashable, content: Content, block_tokens: int, block_bytes: int) -> None:
        """A sequence has blocks here: what is cached of it is in use. Idempotent."""
        if user in self._users:
            return
        self._users[user] = content, block_tokens, block_bytes
        for span in content.spans(block_tokens, _ALL):
            text = self._texts.get(span.text)
            if text is None:
                text = self._texts[span.text] = Text(span.first, block_bytes)
            elif not text.users:
                self.nbytes -= text.nbytes
            text.users += 1

    def release(self, user: Hashable, blocks: int, now: float, block_s: float) -> None:
        """A sequence leaves with so many full blocks: they stay until their memory is needed."""
        if user not in self._users:
            return
        content, block_tokens, _ = self._users.pop(user)
        full = {span.text: span for span in content.spans(block_tokens, blocks)}
        for span in content.spans(block_tokens, _ALL):
            text = self._texts[span.text]
            if span.text in full:
                _use(text, full[span.text], blocks, now, block_s)
            text.users -= 1
            if not text.users:
                self.nbytes += text.nbytes
                self._drop_if_empty(span.text, text)

    def publish(self, user: Hashable, blocks: int) -> None:
        """A sequence that has blocks here has filled so many: others find them from now on."""
        if user in self._users:
            content, block_tokens, _ = self._users[user]
            for span in content.spans(block_tokens, blocks):
                self._texts[span.text].extend(span.end)

    def reused(self, content: Content, block_tokens: int, blocks: int) -> None:
        """These leading blocks were found instead of computed."""
        for span in content.spans(block_tokens, blocks):
            text = self._texts[span.text]
            text.uses[: span.end - text.first] += 1.0

    def lacks(self, source: PrefixCache, content: Content, block_tokens: int, blocks: int) -> int:
        """Count the leading blocks that another cache has and this one has not, up to the first that neither has."""
        missing = 0
        for span in content.spans(block_tokens, blocks):
            end = min(source.end(span.text), span.end)
            missing += max(0, end - max(self.end(span.text), span.first))
            if max(end, self.end(span.text)) < span.end:
                break
        return missing

    def copy(
        self, source: PrefixCache, content: Content, block_tokens: int, block_bytes: int, blocks: int, most: int
    ) -> None:
        """Take over `most` of the blocks that it lacks; they are worth what they are there."""
        for span in content.spans(block_tokens, blocks):
            first = max(self.end(span.text), span.first)
            end = min(source.end(span.text), span.end, first + most)
            if end > first:
                text = self._texts.setdefault(span.text, Text(span.first, block_bytes))
                self.nbytes += 0 if text.users else (end - text.end) * block_bytes
                text.extend(end)
                most -= end - first
        self.level(source, content, block_tokens, blocks)

    def level(self, other: PrefixCache, content: Content, block_tokens: int, blocks: int) -> None:
        """Uses of the leading blocks count in both caches."""
        for span in content.spans(block_tokens, blocks):
            text, copy = self._texts.get(span.text), other._texts.get(span.text)
            if text is not None and copy is not None:
                text.level(copy)

    def mean_value(
        self, lacking: PrefixCache, content: Content, block_tokens: int, blocks: int, most: int, now: float
    ) -> float:
        """The mean value here of the first `most` leading blocks that another cache lacks."""
        values = [np.zeros(0)]
        for span in content.spans(block_tokens, blocks):
            text = self._texts.get(span.text)
            if text is not None:
                first = max(lacking.end(span.text), span.first)
                values.append(text.values(now)[first - text.first : span.end - text.first])
        return float(np.concatenate(values)[:most].mean())

    def make_room(self, nbytes: int, block_bytes: int, value: float, room_bytes: int, now: float) -> bool:
        """Evict for so many bytes of blocks of this value each. False where too little is worth less: nothing goes."""
        missing = self.nbytes + nbytes - room_bytes
        if missing <= 0:
            return True
        cheap = 0.0
        for text in self._texts.values():
            if not text.users and len(text.uses):
                slabs = text.worth(now, self._per_slab(text))
                cheap += self._slab_sizes(text, len(slabs))[slabs < value * self._slab_bytes / block_bytes].sum()
        if cheap >= missing:
            self._evict(missing, now)
        return cheap >= missing

    def fit(self, room_bytes: int, now: float) -> None:
        """Evict what exceeds the room."""
        if self.nbytes > room_bytes:
            self._evict(self.nbytes - max(0, room_bytes - self._ahead), now)

    def _evict(self, missing: int, now: float) -> None:
        """Evict so many bytes, or all; what is worth least goes first."""
        idle = [(name, text) for name, text in self._texts.items() if not text.users and len(text.uses)]
        slabs = [text.worth(now, self._per_slab(text)) for _, text in idle]
        owner = np.repeat(np.arange(len(idle)), [len(of) for of in slabs])
        sizes = np.concatenate([self._slab_sizes(text, len(of)) for (_, text), of in zip(idle, slabs, strict=True)])
        order = np.argsort(np.concatenate(slabs), kind="stable")
        count = int(np.searchsorted(np.cumsum(sizes[order]), missing)) + 1
        for number, lost in enumerate(np.bincount(owner[order[:count]], minlength=len(idle)).tolist()):
            if lost:
                self._cut(*idle[number], len(slabs[number]) - lost)

    def _per_slab(self, text: Text) -> int:
        return max(1, self._slab_bytes // text.block_bytes)

    def _slab_sizes(self, text: Text, slabs: int) -> Values:
        sizes = np.full(slabs, float(self._per_slab(text) * text.block_bytes))
        sizes[-1] = text.nbytes - sizes[:-1].sum()
        return sizes

    def _cut(self, name: int, text: Text, slabs: int) -> None:
        """Its first slabs stay."""
        self.nbytes -= text.nbytes
        text.cut(slabs * self._per_slab(text))
        self.nbytes += text.nbytes
        self._drop_if_empty(name, text)

    def _drop_if_empty(self, name: int, text: Text) -> None:
        if not len(text.uses):
            del self._texts[name]

    def check(self) -> None:
        """Raises AssertionError where the count of bytes is not that of the texts."""
        assert self.nbytes == sum(text.nbytes for text in self._texts.values() if not text.users)


_ALL = 1 << 40  # blocks: more than any prompt has


def _use(text: Text, span: Span, blocks: int, now: float, block_s: float) -> None:
    """A sequence had the blocks of `span` of this text, and `blocks` in all."""
    text.extend(span.end)
    own = span.end - text.first
    following = (blocks - text.first - np.arange(own)) * block_s
    text.lost_s[:own] = np.maximum(text.lost_s[:own], following)
    text.used_s[:own] = now
