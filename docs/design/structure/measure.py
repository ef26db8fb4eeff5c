"""Rooms and arrows of the product: packages and their parts, and the imports between them, read by grimp.

`python docs/design/structure/measure.py ROOT > before.json` measures another checkout.
"""

from __future__ import annotations

import ast
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import grimp

FOLDERS = ("operator", "sidecar", "proto")
MOST_LINES = 320


@dataclass(frozen=True)
class Room:
    """A part of a package, or a package: modules and lines of Python, without what protoc made."""

    name: str
    modules: int
    lines: int


@dataclass(frozen=True)
class Plan:
    """The rooms of a package, and the imports from one to another with how many modules they join."""

    name: str
    rooms: tuple[Room, ...]
    arrows: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class House:
    """All plans, the first of the packages themselves, and the sizes of functions and files."""

    plans: tuple[Plan, ...]
    functions: int
    median: float
    p90: float
    large: tuple[str, ...]
    modules: int
    lines: int


def measure(root: Path) -> House:
    """Measure a checkout; its packages are found before any that are installed."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if "Inplace" not in type(finder).__name__]
    sys.path[:0] = [str(root / folder) for folder in FOLDERS]
    files = dict(sources(root))
    packages = sorted({name.partition(".")[0] for name in files})
    graph = grimp.build_graph(*packages, cache_dir=None)
    imports = [
        (importer, name) for importer in graph.modules for name in graph.find_modules_directly_imported_by(importer)
    ]
    lengths = sorted(length for path in files.values() for length in functions(path))
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in files.items()}
    kept = [(importer, name) for importer, name in imports if importer in files and name in files]
    plans = [plan("", packages, kept, lines)] + [plan(name, packages, kept, lines) for name in packages]
    large = sorted(str(path.relative_to(root)) for name, path in files.items() if lines[name] > MOST_LINES)
    return House(
        plans=tuple(plans),
        functions=len(lengths),
        median=statistics.median(lengths),
        p90=lengths[len(lengths) * 9 // 10],
        large=tuple(large),
        modules=len(files),
        lines=sum(lines.values()),
    )


def sources(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the modules with their files."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if "_pb2" not in path.name and "_compiled" not in str(path):
                parts = path.relative_to(root / folder).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def functions(path: Path) -> Iterator[int]:
    """Yield the lines of every function."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.end_lineno - node.lineno + 1


def plan(package: str, packages: list[str], imports: list[tuple[str, str]], lines: dict[str, int]) -> Plan:
    """Return the plan of a package; "": of all packages."""

    def room(module: str) -> str | None:
        parts = module.split(".")
        if not package:
            return parts[0]
        return parts[1] if parts[0] == package and len(parts) > 1 else None

    modules = Counter(name for module in lines if (name := room(module)) is not None)
    size: Counter[str] = Counter()
    for module, count in lines.items():
        if (name := room(module)) is not None:
            size[name] += count
    joined = Counter((room(importer), room(name)) for importer, name in imports)
    arrows = [(a, b, n) for (a, b), n in sorted(joined.items(), key=str) if a and b and a != b]
    return Plan(package, tuple(Room(name, modules[name], size[name]) for name in sorted(modules)), tuple(arrows))


if __name__ == "__main__":
    json.dump(asdict(measure(Path(sys.argv[1]).resolve())), sys.stdout, indent=1)
    sys.stdout.write("\n")
