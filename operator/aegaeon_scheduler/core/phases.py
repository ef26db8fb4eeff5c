"""Phases, stages, places and roles that rows are compared with at each event, as constants.

`Stage.LOST` is a look-up on a class whose metaclass has `__getattr__` in Python 3.11: some 900 instructions. A `Final`
of a compiled module takes two.
"""

from __future__ import annotations

from typing import Final

from aegaeon_scheduler.core.domain import Phase, Place, Role, Stage

PHASE_ABSENT: Final = Phase.ABSENT
PHASE_CACHED: Final = Phase.CACHED
PHASE_FAILED: Final = Phase.FAILED
PHASE_FETCHING: Final = Phase.FETCHING
PLACE_NONE: Final = Place.NONE
PLACE_DEVICE: Final = Place.DEVICE
PLACE_HOST: Final = Place.HOST
ROLE_PREFILL: Final = Role.PREFILL
ROLE_DECODE: Final = Role.DECODE
STAGE_QUEUED: Final = Stage.QUEUED
STAGE_PREFILL: Final = Stage.PREFILL
STAGE_HANDOFF: Final = Stage.HANDOFF
STAGE_DECODE: Final = Stage.DECODE
STAGE_LOST: Final = Stage.LOST
