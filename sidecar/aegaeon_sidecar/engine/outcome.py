"""The result of a lane's command, for its report."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_proto.engine.sequences import KvHandle


@dataclass(frozen=True, slots=True)
class Outcome:
    """`nbytes` moved; `handle` for SwapOut; `silent` when the command reports its end itself (Turn)."""

    nbytes: int = 0
    handle: KvHandle | None = None
    silent: bool = False
