"""The plan in calls, for a machine that is lent for a quarter of an hour (`make gpu-short`; short.sh runs there).

`pack` makes a folder of what such a machine lacks: wheels, a native core built for its Python, and, where no checkout
is carried beside it, the tree. `look`, `first` and `second` print the stages of
the calls.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

FIRST = (
    "probes", "models", "calibrate", "pool", "verify", "simulate", "switch", "beside", "decode", "assumptions",
)  # fmt: skip
SECOND = ("test-gpu", "copies", "prefill", "draws", "roles", "verify-roles")
LOOK = ("models", "pool", "verify", "test-gpu", "assumptions")  # with models of a few layers: whether all of it runs
CALLS = {"look": LOOK, "first": FIRST, "second": (*FIRST, *SECOND)}  # the second goes on where the first one ended
LIMITS = {"look": 230, "first": 575, "second": 240}  # seconds, of the program that runs the call; short.sh ends before
MOST_BYTES, MOST_COMMAND = 60 << 20, 2000
_ROOT = Path(__file__).parents[2]
_SCRIPT = Path(__file__).with_suffix(".sh")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for call in CALLS:
        commands.add_parser(call)
    packing = commands.add_parser("pack")
    packing.add_argument("--into", type=Path, required=True)
    packing.add_argument("--wheels", type=Path, required=True)
    packing.add_argument("--site", type=Path, help="a core that was built for the machine's Python")
    packing.add_argument("--tree", action="store_true", help="the tracked files as well, of the last commit")
    arguments = parser.parse_args()
    if arguments.command == "pack":
        return pack(arguments.into, arguments.wheels, arguments.site, arguments.tree)
    print(*CALLS[arguments.command])
    return 0


def pack(into: Path, wheels: Path, site: Path | None, tree: bool) -> int:
    """The folder, its size and the two commands. Status 1: it is larger than a call carries."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    shutil.copyfile(_SCRIPT, into / _SCRIPT.name)
    shutil.copytree(wheels, into / "wheels")
    if site is not None:
        shutil.copytree(site, into / "site")
    with (into / "tree.tgz").open("wb") as file:
        subprocess.run(["git", "archive", "--format=tar.gz", "HEAD"], cwd=_ROOT, stdout=file, check=True)
    nbytes = {one.name: _bytes(one) for one in sorted(into.iterdir())}
    total = sum(nbytes.values())
    if not tree:
        (into / "tree.tgz").unlink()
    print(*(f"{name}: {size / 2**20:.1f} MiB" for name, size in nbytes.items()), sep="\n")
    print(f"{total / 2**20:.1f} MiB in all, {MOST_BYTES >> 20} at most\n\n{commands_of(into)}")
    return 0 if total <= MOST_BYTES else 1


def commands_of(folder: Path) -> str:
    """What to run there, in the repository's root, or in any folder where the tree is packed as well."""
    lines = [f"Carry {folder} and run, each within its seconds, the second one at once after the first:"]
    lines += [f"{seconds} s: {_command(folder, call)}" for call, seconds in LIMITS.items()]
    return "\n".join(lines)


def _command(folder: Path, call: str) -> str:
    command = f"bash {folder / _SCRIPT.name} {call}"
    assert len(command) <= MOST_COMMAND
    return command


def _bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


if __name__ == "__main__":
    sys.exit(main())
