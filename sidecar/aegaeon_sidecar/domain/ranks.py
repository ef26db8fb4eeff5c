"""Ranks: the devices of one engine. They share every model (models/sharding.py) and hold everything alike.

One process and its threads serve all of them (docs/design/decisions.md says why), so there is one scheduler's view, one
book of slabs and blocks, and one address for each thing on each rank.
"""

from __future__ import annotations


def devices_of(first: str, ranks: int) -> tuple[str, ...]:
    """The ranks' devices: "cuda:N" and those after it, or "cpu" for all."""
    kind, _, number = first.partition(":")
    return tuple(f"{kind}:{int(number) + rank}" if number.isdecimal() else first for rank in range(ranks))
