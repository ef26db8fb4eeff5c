"""`python -m aegaeon_gateway --config FILE`: one process, one loop, until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from aegaeon_gateway.config import load_config
from aegaeon_gateway.errors import ConfigError
from aegaeon_gateway.run import run
from aegaeon_proto.channels import TlsError


async def _until_signal(path: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run(load_config(path), stop)


def main() -> int:
    """Exit status 2 when the configuration or an address cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m aegaeon_gateway", description="The OpenAI API of an Aegaeon pool.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file, see docs/design/processes.md")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_until_signal(arguments.config))
    except (ConfigError, TlsError, OSError, RuntimeError) as error:
        sys.stderr.write(f"gateway: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
