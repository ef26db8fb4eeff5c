"""`python -m attacks.attacker NAME TARGET SECONDS PACE`: one attack as a process of its own, at the lowest priority.

It prints `ready` when what it sends is made, begins when a line comes on standard input, and prints what it saw.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback

from attacks.stranger import Stranger
from attacks.table import ATTACKS
from attacks.target import Target

NICE = 19
READY_S = 600.0  # to make what is sent, and to wait for the others
TAIL_S = 25.0  # beyond the attack's own end: answers that are still awaited


async def attack(name: str, target: Target, seconds: float, pace: float) -> Stranger:
    async with Stranger(target, seconds, pace) as stranger:
        try:
            async with asyncio.timeout(READY_S + seconds + TAIL_S):
                await ATTACKS[name].run(stranger)
        except TimeoutError:
            stranger.answers["cut off at its end"] += 1
        return stranger


def main() -> int:
    name, target, seconds, pace = sys.argv[1:5]
    os.nice(NICE)
    try:
        saw = asyncio.run(attack(name, Target.of(target), float(seconds), float(pace)))
    except Exception:  # noqa: BLE001 - the harness tells it: an attack that does not run proves nothing
        sys.stdout.write(json.dumps({"error": traceback.format_exc()}))
        return 1
    sys.stdout.write(json.dumps({"answers": saw.answers, "harm": saw.harm}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
