"""One attack as a process of its own, at the lowest priority, forked from one that has imported what attacks need.

It sends `stranger.READY` when what it attacks with is made, begins when it is sent anything, and sends what it saw.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from multiprocessing.connection import Connection

from attacks.stranger import Stranger
from attacks.table import ATTACKS
from attacks.target import Target

NICE = 19
READY_S = 600.0  # to make what is sent, and to wait for the others
TAIL_S = 25.0  # beyond the attack's own end: answers that are still awaited


async def attack(campaign: Connection, name: str, target: Target, seconds: float, pace: float) -> Stranger:
    async with Stranger(campaign, target, seconds, pace) as stranger:
        try:
            async with asyncio.timeout(READY_S + seconds + TAIL_S):
                await ATTACKS[name].run(stranger)
        except TimeoutError:
            stranger.answers["cut off at its end"] += 1
        return stranger


def run(campaign: Connection, name: str, target: Target, seconds: float, pace: float) -> None:
    """The process. What goes wrong with the attack itself is sent as `error`: one that does not run proves nothing."""
    os.nice(NICE)
    try:
        saw = asyncio.run(attack(campaign, name, target, seconds, pace))
        campaign.send({"answers": saw.answers, "harm": saw.harm})
    except Exception:  # noqa: BLE001 - the campaign raises it
        campaign.send({"error": traceback.format_exc()})
