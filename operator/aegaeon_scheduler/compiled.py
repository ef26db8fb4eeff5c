"""The core compiled by mypyc (`make compiled-core`), where a build of exactly these sources lies beside them.

Wheels and images have one; a checkout may. An edit makes it stale: then the core is interpreted, three times slower
with the same decisions. AEGAEON_CORE: `compiled` makes that an error, `interpreted` ignores the build.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

CORE = "aegaeon_scheduler.core"
PROTOCOL = "aegaeon_proto.engine"
GROUP = "aegaeon_core"
FOLDER = Path(__file__).with_name("_compiled")
SOURCES = "sources.sha256"
CHOICE = "AEGAEON_CORE"
_ROOT = Path(__file__).with_name("core")
# What the event log reads the annotations of, which mypyc drops.
_INTERPRETED = {f"{name}.py" for name in ("commands", "config", "domain", "events", "log")} | {"__init__.py"}


def digest() -> str:
    """Hexadecimal SHA-256 of the sources that a build depends on, names included."""
    digested = sha256()
    for name, file in _sources():
        content = file.read_bytes()
        digested.update(f"{name} {len(content)}\n".encode() + content)
    return digested.hexdigest()


def modules() -> list[str]:
    """Full names of the modules that are compiled."""
    parts = (file.relative_to(_ROOT).with_suffix("").parts for file in _files() if file.name not in _INTERPRETED)
    return [".".join((CORE, *names)) for names in parts]


def protocol() -> Path:
    """The folder of the protocol's types, which stay interpreted and which the core is compiled against."""
    spec = find_spec(PROTOCOL)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{PROTOCOL} is not installed beside the scheduler")
    return Path(spec.submodule_search_locations[0])


def _sources() -> Iterator[tuple[str, Path]]:
    for package, root in ((CORE, _ROOT), (PROTOCOL, protocol())):
        for file in sorted(root.rglob("*.py")):
            yield f"{package}/{file.relative_to(root).as_posix()}", file


def _files() -> list[Path]:
    return sorted(_ROOT.rglob("*.py"))


class _Finder(MetaPathFinder):
    """Modules of the core from the folder of the build, before any finder that knows their sources."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith((f"{CORE}.", f"{GROUP}__mypyc")):
            return None
        file = FOLDER / f"{name}{EXTENSION_SUFFIXES[0]}"
        return spec_from_file_location(name, file) if file.exists() else None


def use() -> bool:
    """True when modules of the core are imported compiled from now on.

    Raises ImportError where AEGAEON_CORE demands that and there is no build of these sources for this Python.
    """
    choice = os.environ.get(CHOICE, "")
    if choice not in {"", "compiled", "interpreted"}:
        raise ImportError(f"{CHOICE} is {choice!r}: set it to compiled or interpreted, or unset it")
    if choice == "interpreted":
        return False
    if _fresh():
        sys.meta_path.insert(0, _Finder())
        return True
    if choice == "compiled":
        raise ImportError(f"{CHOICE}=compiled, but {FOLDER} has no build of these sources: run `make compiled-core`")
    return False


def _fresh() -> bool:
    try:
        of = (FOLDER / SOURCES).read_text().strip()
    except OSError:
        return False
    return (FOLDER / f"{GROUP}__mypyc{EXTENSION_SUFFIXES[0]}").exists() and of == digest()
