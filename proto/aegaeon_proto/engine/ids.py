"""Names of models, engines, commands and sequences."""

from __future__ import annotations

from typing import NamedTuple, NewType

ModelName = NewType("ModelName", str)
InstanceId = NewType("InstanceId", str)
CommandId = NewType("CommandId", int)
KvShape = NewType("KvShape", str)


class SeqId(NamedTuple):
    """One choice of one request; what moves between engines."""

    request: str
    choice: int
