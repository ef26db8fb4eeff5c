"""Clients that send a workload's requests: each at its time, those of a session one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from aegaeon_scheduler.core.domain import ModelName
from aegaeon_simulator.pool.client import Client
from aegaeon_simulator.pool.world import World
from aegaeon_simulator.results.outcome import Served
from aegaeon_simulator.workload import Arrival
from aegaeon_simulator.workload.content import contents, least_tokens, shares_text


class Clients:
    """A request of a session is sent at its time, or its pause after the answer before it, if that is later."""

    def __init__(self, world: World, names: Sequence[ModelName], arrivals: Sequence[Arrival]) -> None:
        self._world = world
        self._names = names
        self._arrivals = arrivals
        self._sent: list[Client | None] = [None] * len(arrivals)
        self._contents = contents(arrivals) if shares_text(arrivals) else []
        self._after: dict[int, int] = {}  # the next request of the session
        last: dict[str, int] = {}
        for index, arrival in enumerate(arrivals):
            before = last.get(arrival.session) if arrival.session else None
            if before is None:
                self._send(index)
            else:
                self._after[before] = index
            if arrival.session:
                last[arrival.session] = index

    def _send(self, index: int, pause_s: float = 0.0) -> None:
        arrival, world = self._arrivals[index], self._world
        at = max(arrival.t_s, world.clock.now + pause_s)
        client = world.request(f"r{index}", self._names[arrival.model], arrival.input_tokens, arrival.output_tokens, at)
        client.tenant, client.defer_s, client.terms = arrival.tenant, arrival.defer_s, arrival.terms
        client.content = self._contents[index] if self._contents else None
        if index in self._after or arrival.session:
            client.ended = partial(self._next, index)
        self._sent[index] = client

    def _next(self, index: int) -> None:
        after = self._after.get(index)
        if after is not None and self._sent[after] is None:
            self._send(after, self._arrivals[after].pause_s)

    def least_tokens(self, block_tokens: int) -> int | None:
        """Tokens of the prompts that were answered which had to be computed; None where no prompts begin alike."""
        if not self._contents:
            return None
        sent = [(c, self._contents[i]) for i, c in enumerate(self._sent) if c is not None and c.times]
        sent.sort(key=lambda pair: pair[0].arrival)
        return least_tokens(((content, c.prompt_tokens, len(c.times)) for c, content in sent), block_tokens)

    def served(self) -> list[Served]:
        """Results of all requests, in the workload's order; a request that was never sent has no token."""
        return [_served(a, c) for a, c in zip(self._arrivals, self._sent, strict=True)]


def _served(arrival: Arrival, client: Client | None) -> Served:
    of = (arrival.tenant, arrival.defer_s, arrival.session)
    if client is None:
        return Served(arrival.model, arrival.output_tokens, arrival.t_s, [], None, *of)
    refused_s = client.rejected_at - client.arrival if client.rejected is not None else None
    return Served(arrival.model, client.length, client.arrival, client.times, refused_s, *of)
