"""What carrying out a command with a lane gives, for its Done report."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_proto.v1 import engine_pb2 as pb


@dataclass(frozen=True, slots=True)
class Outcome:
    """`nbytes` moved; `handle` for SwapOut; `silent` when the command reports its end itself (Turn)."""

    nbytes: int = 0
    handle: pb.KvHandle | None = None
    silent: bool = False
