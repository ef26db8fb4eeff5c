"""What a machine without a network lacks of what a pool needs, as wheels in pieces of a size that one call can carry.

`collect` (with a network, in the project's environment) resolves the needs of the processes and of the tests against
what the machine has, fetches the missing wheels for its Python at the versions of requirements.lock, and deals them
into folders. `install` (there, with its own Python) installs what has arrived; it needs the standard library alone.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_MACHINE = Path(__file__).with_name("machine.txt")
_MIB = 1 << 20
_PYTHON = "3.12"
_PLATFORMS = ("2_39", "2_35", "2_34", "2_31", "2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
NEEDED = (
    "aiohttp", "blake3", "click", "cryptography", "grpcio", "huggingface-hub", "hypothesis", "jinja2", "llguidance",
    "msgspec", "nanobind", "ninja", "numpy", "obstore", "openai", "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-sdk", "orjson", "prometheus-client", "protobuf", "pydantic", "pytest", "pytest-asyncio",
    "pytest-timeout", "pyyaml", "redis", "rich", "safetensors", "scikit-build-core", "tokenizers", "torch",
    "transformers", "uvloop",
)  # fmt: skip
"""what `aegaeon up`, its processes and tests/gpu import; what runs on Kubernetes alone is not among them"""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A file to carry."""

    file: Path
    nbytes: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect")
    collecting.add_argument("--into", type=Path, required=True)
    collecting.add_argument("--have", type=Path, default=_MACHINE, help="NAME or NAME==VERSION, one a line")
    collecting.add_argument("--piece", type=float, default=48.0, help="MiB of a piece at most")
    installing = commands.add_parser("install")
    installing.add_argument("--from", dest="pieces", type=Path, required=True)
    installing.add_argument("--into", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "install":
        return install(given.pieces, given.into)
    return collect(given.into, read_names(given.have.read_text("utf-8")), int(given.piece * _MIB))


def install(pieces: Path, into: Path) -> int:
    """With pip, from all wheels below `pieces`; the exit status is pip's."""
    wheels = sorted(map(str, pieces.rglob("*.whl")))
    if not wheels:
        print(f"{pieces}: no wheels; every package is expected of the machine")
        return 0
    options = ("--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade")
    return subprocess.call([sys.executable, "-m", "pip", "install", *options, "--target", str(into), *wheels])


def collect(into: Path, have: Mapping[str, str | None], piece_bytes: int) -> int:
    """Fetch what is missing, deal it into `into`/1, `into`/2 ..., print their sizes. Status 1: a wheel is too large."""
    missing = lacking(NEEDED, have)
    locked = read_names((_ROOT / "requirements.lock").read_text("utf-8"))
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=into) as scratch:
        fetch({name: locked[name] for name in missing}, Path(scratch))
        wheels = [Wheel(file, file.stat().st_size) for file in Path(scratch).glob("*.whl")]
        too_large = [wheel.file.name for wheel in wheels if wheel.nbytes > piece_bytes]
        for number, piece in enumerate(deal(wheels, piece_bytes), 1):
            (into / str(number)).mkdir()
            for wheel in piece:
                wheel.file.rename(into / str(number) / wheel.file.name)
            names = ", ".join(sorted(wheel.file.name.split("-")[0] for wheel in piece))
            print(f"piece {number}: {sum(w.nbytes for w in piece) / _MIB:.1f} MiB, {len(piece)} wheels: {names}")
    print(f"{len(wheels)} wheels, {sum(wheel.nbytes for wheel in wheels) / _MIB:.1f} MiB in all")
    for name in too_large:
        print(f"{name} is larger than a piece", file=sys.stderr)
    return 1 if too_large else 0


def read_names(text: str) -> dict[str, str | None]:
    """By canonical name, the version behind == of each line; for this Python's lines where there are several."""
    found: dict[str, str | None] = {}
    for line in text.splitlines():
        match = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:==([^\s;\\]+))?", line)
        marker = line.partition(";")[2].rstrip("\\ ")
        if match and (not marker.strip() or _holds(marker)):
            found[canonical(match[1])] = match[2]
    return found


def canonical(name: str) -> str:
    """As registries compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _holds(marker: str) -> bool:
    from packaging.markers import Marker

    return Marker(marker).evaluate({
        "python_full_version": f"{_PYTHON}.3", "python_version": _PYTHON, "sys_platform": "linux", "extra": "",
        "platform_machine": "x86_64", "platform_python_implementation": "CPython",
    })  # fmt: skip


def lacking(names: Iterable[str], have: Mapping[str, str | None]) -> list[str]:
    """Those of them, and of all that they require, that the machine has not or not in a version that suits.

    Requirements are those of the packages installed here. Where the machine's version is not known, a package that is
    asked for in certain versions is carried: most are small.
    """
    asked: dict[str, list[str]] = {}
    todo = [(name, spec) for name in names for spec in [_of_project().get(name, "")]]
    missing: dict[str, None] = {}
    while todo:
        name, spec = todo.pop()
        if spec in asked.setdefault(name, []):
            continue
        asked[name].append(spec)
        if _suits(have, name, spec):
            continue
        missing[name] = None
        todo += _requirements(name)
    return sorted(missing)


def _suits(have: Mapping[str, str | None], name: str, spec: str) -> bool:
    from packaging.specifiers import SpecifierSet

    if name not in have:
        return False
    version = have[name]
    return not spec if version is None else SpecifierSet(spec).contains(version, prereleases=True)


def _of_project() -> dict[str, str]:
    """The versions that pyproject.toml asks for, by name."""
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    parsed = [Requirement(text) for text in texts]
    return {canonical(one.name): str(one.specifier) for one in parsed}


def _requirements(name: str) -> list[tuple[str, str]]:
    """Of a package that is installed here: names and versions, without extras."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    parsed = [Requirement(text) for text in requires(name) or ()]
    return [(canonical(r.name), str(r.specifier)) for r in parsed if r.marker is None or _holds(str(r.marker))]


def fetch(versions: Mapping[str, str | None], into: Path) -> None:
    """Wheels for the machine's Python. Raises CalledProcessError where there is none of a package."""
    platforms = [f"manylinux_{version}_x86_64" for version in _PLATFORMS]
    platforms += [f"manylinux{year}_x86_64" for year in ("2014", "2010", "1")]
    target = ["--python-version", _PYTHON, "--implementation", "cp", *(f"--platform={p}" for p in platforms)]
    pins = [f"{name}=={version}" for name, version in versions.items()]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--only-binary=:all:", *target, "--dest", str(into), *pins], check=True)


def deal(wheels: Iterable[Wheel], piece_bytes: int) -> list[list[Wheel]]:
    """Into pieces of at most so many bytes, the largest first, each into the first piece that has room for it."""
    pieces: list[list[Wheel]] = []
    for wheel in sorted(wheels, key=lambda wheel: (-wheel.nbytes, wheel.file.name)):
        room = (p for p in pieces if sum(other.nbytes for other in p) + wheel.nbytes <= piece_bytes)
        piece = next(room, None)
        if piece is None:
            pieces.append([wheel])
        else:
            piece.append(wheel)
    return pieces


if __name__ == "__main__":
    sys.exit(main())
