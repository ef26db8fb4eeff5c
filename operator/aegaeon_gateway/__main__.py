"""`python -m aegaeon_gateway --config FILE`: one process, one loop, until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from pathlib import Path

from aegaeon_gateway.config import GatewayConfig, load_config
from aegaeon_gateway.errors import ConfigError
from aegaeon_gateway.log_limit import LineLimit
from aegaeon_gateway.request_id import LOG_FORMAT, RequestIdFilter
from aegaeon_gateway.run import run
from aegaeon_proto.certificates import TlsError
from aegaeon_proto.logs import LogLevelError, configure


async def _until_signal(config: GatewayConfig) -> None:
    gc.collect()
    gc.freeze()  # else each full collection looks at all that was imported: 30 ms of the loop
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run(config, stop)


def main() -> int:
    """Exit status 2 when the configuration or an address cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m aegaeon_gateway", description="The OpenAI API of an Aegaeon pool.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file, see docs/design/processes.md")
    parser.add_argument("--name", help="instead of the file's: what differs from pod to pod")
    parser.add_argument("--sink", metavar="HOST:PORT", help="instead of the file's")
    options = {key: value for key, value in vars(parser.parse_args()).items() if value is not None}
    handler = logging.StreamHandler()
    handler.addFilter(LineLimit())
    handler.addFilter(RequestIdFilter())
    try:
        configure(os.environ, LOG_FORMAT, [handler])
        asyncio.run(_until_signal(load_config(options.pop("config"), options)))
    except (ConfigError, LogLevelError, TlsError, OSError, RuntimeError) as error:
        sys.stderr.write(f"gateway: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
