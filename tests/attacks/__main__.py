"""`python -m attacks`: all attacks at once for MINUTES, or each alone (`--each`), in figures beside their bars."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from attacks.arena import Arena
from attacks.campaign import PACE_S
from attacks.ground import GOOD_MODELS
from attacks.innocent import ChatError
from attacks.table import ATTACKS

from aegaeon_cli.folders import models_folder
from aegaeon_cli.models import make_models


async def each(arena: Arena, names: list[str], seconds: float) -> None:
    for name in names:
        try:
            outcome = await arena.attack([ATTACKS[name]], quiet_s=2.0, seconds=seconds, pace=PACE_S)
        except (AssertionError, ChatError, OSError, TimeoutError, RuntimeError) as error:
            print(f"{name:<24} the harness gave up: {type(error).__name__}: {error}", flush=True)
            await arena.fall()
        else:
            print(outcome.line(), flush=True)
            for problem in sorted(set(outcome.problems))[:4]:
                print(f"    {problem}", flush=True)


async def run(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.models
    models = {name: folder / name for name in GOOD_MODELS}
    async with Arena(models) as arena:
        await each(arena, arguments.names or list(ATTACKS), arguments.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--models", type=Path, default=models_folder())
    arguments = parser.parse_args()
    make_models(arguments.models, print)
    asyncio.run(run(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
