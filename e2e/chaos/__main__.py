"""`python -m e2e.chaos`: random faults for MINUTES on the cluster of `make cluster-up`, in figures beside their bars.

`--each`: every kind once, alone. Everything that is found is written to build/chaos/SEED: one line a fault, failed
requests with the faults before them, and the pods' logs when something did not hold.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
from pathlib import Path

from benchmarks.report import report

from e2e.chaos import ground
from e2e.chaos.campaign import Campaign
from e2e.chaos.faults import KINDS, SHORT
from e2e.chaos.logs import Logs
from e2e.chaos.report import MINUTES, by_kind, rows
from e2e.chaos.verdict import Compare, in_a_process
from e2e.cluster import product
from e2e.cluster.layout import default_layout
from e2e.installation import SYSTEM, with_redis


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # faults are healed, as after Ctrl-C
    record = Path("build/chaos") / str(arguments.seed)
    shutil.rmtree(record, ignore_errors=True)
    record.mkdir(parents=True)
    print(f"seed {arguments.seed}, record in {record}", flush=True)
    with in_a_process() as compare:
        return 0 if _run(arguments, record, compare) else 1


def _run(arguments: argparse.Namespace, record: Path, compare: Compare) -> bool:
    layout = default_layout()
    models = product.load(layout)
    ground.prepare(layout.kubeconfig, layout)
    with with_redis(layout.kubeconfig), Logs(layout, (ground.NAMESPACE, SYSTEM)) as logs:
        try:
            with ground.under_load(layout.kubeconfig, layout, models, compare) as world:
                campaign = Campaign(world, arguments.seed, record)
                if arguments.each:
                    campaign.each(arguments.kinds)
                else:
                    weights = {name: 1 if arguments.short else KINDS[name].weight for name in arguments.kinds}
                    campaign.run(weights, arguments.minutes, arguments.faults)
        finally:
            logs.save(record / "logs")
    return _tell(campaign, arguments)


def _tell(campaign: Campaign, arguments: argparse.Namespace) -> bool:
    campaign.look()
    print(*by_kind(campaign), sep="\n")
    figures = rows(campaign)
    short = arguments.each or arguments.minutes < MINUTES or arguments.faults is not None
    return report("chaos", figures, short)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m e2e.chaos")
    parser.add_argument("kinds", nargs="*", default=tuple(KINDS), metavar="KIND", help=f"of: {', '.join(KINDS)}")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--faults", type=int, help="at most so many")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="left out: any")
    parser.add_argument("--each", action="store_true", help="every kind once, one after the other")
    parser.add_argument("--short", action="store_true", help="the kinds that make e2e takes")
    arguments = parser.parse_args()
    arguments.kinds = SHORT if arguments.short else tuple(arguments.kinds)
    if unknown := set(arguments.kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
