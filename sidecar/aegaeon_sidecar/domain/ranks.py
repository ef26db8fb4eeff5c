"""Ranks: the devices of one engine. They share every model (models/sharding.py) and hold the same things.

One process and its threads serve all of them (docs/design/decisions.md has the reasons). So the scheduler sees one
engine, with one account of slabs and blocks, and each thing has one address on every rank.
"""

from __future__ import annotations


def devices_of(first: str, ranks: int) -> tuple[str, ...]:
    """The ranks' devices: "cuda:N" and those after it, or "cpu" for all."""
    kind, _, number = first.partition(":")
    return tuple(f"{kind}:{int(number) + rank}" if number.isdecimal() else first for rank in range(ranks))
