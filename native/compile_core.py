"""Compile the scheduler's core by mypyc: `python native/compile_core.py [--out FOLDER] [--cache FOLDER]`.

`aegaeon_scheduler.compiled` imports the build while it matches the sources. Needs mypy, setuptools and a C
compiler, and takes a minute and a half of a processor; with a cache, once for the same sources.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import sys
import tempfile
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "operator"
sys.path.insert(0, str(ROOT / "proto"))
sys.path.insert(0, str(PACKAGES / "aegaeon_scheduler"))  # installed it may be nowhere: an image's build has its files

import compiled  # noqa: E402  # found by the line above


def main() -> None:
    """Build the core or take it from the cache, and install it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=compiled.FOLDER, help="default: beside the core", metavar="FOLDER")
    parser.add_argument("--cache", type=Path, help="builds are kept here, by content", metavar="FOLDER")
    options = parser.parse_args()
    cache = options.cache and options.cache.absolute()  # mypyc runs in another folder
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        build = _build(Path(scratch)) if cache is None else _kept(cache, Path(scratch))
        _install(build, options.out)


def _kept(cache: Path, scratch: Path) -> Path:
    """The build of these sources in the cache, made there if it is not yet."""
    kept = cache / f"core-{_key()}"
    if not kept.exists():
        built = _build(scratch)
        try:
            built.rename(kept)
        except OSError:
            if not kept.exists():  # else another process was faster
                raise
    return kept


def _key() -> str:
    """A digest of all inputs of a build."""
    parts = [compiled.digest(), *compiled.modules(), Path(__file__).read_text("utf-8"), version("mypy")]
    parts += [str(sys.implementation.cache_tag), platform.machine()]
    return sha256("\n".join(parts).encode()).hexdigest()[:24]


def _install(build: Path, out: Path) -> None:
    """Replace an earlier build; running processes keep theirs."""
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.", dir=out.parent) as beside:
        new = Path(shutil.copytree(build, Path(beside) / "new"))
        shutil.rmtree(out, ignore_errors=True)
        new.rename(out)


def _build(scratch: Path) -> Path:
    """A folder in `scratch` with the compiled modules and the digest of their sources."""
    digest, log = compiled.digest(), scratch / "log"  # of what is copied: an edit meanwhile is of the next build
    try:
        with log.open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            _compile(scratch)
    except BaseException:
        sys.stderr.write("".join(log.read_text().splitlines(keepends=True)[-40:]))
        raise
    built = scratch / "built"
    built.mkdir()
    for file in (scratch / "lib").rglob("*.so"):
        file.rename(built / file.relative_to(scratch / "lib").as_posix().replace("/", "."))
    (built / compiled.SOURCES).write_text(digest + "\n")
    return built


def _compile(scratch: Path) -> None:
    """Compile into `lib`, from a copy: next to the project, mypy would read its settings."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    tree = scratch / "tree"
    shutil.copytree(PACKAGES / "aegaeon_scheduler" / "core", tree / compiled.CORE.replace(".", "/"))
    for name in ("__init__.py", "compiled.py", "py.typed"):
        shutil.copy(PACKAGES / "aegaeon_scheduler" / name, tree / "aegaeon_scheduler" / name)
    protocol = compiled.protocol()
    shutil.copytree(protocol, tree / compiled.PROTOCOL.replace(".", "/"))
    for name in ("__init__.py", "pooling.py", "py.typed"):
        shutil.copy(protocol.parent / name, tree / "aegaeon_proto" / name)
    with contextlib.chdir(tree):
        files = [f"{name.replace('.', '/')}.py" for name in compiled.modules()]
        extensions = mypycify(
            files, group_name=compiled.GROUP, target_dir=str(scratch / "c"), opt_level="2", debug_level="0"
        )
        command = build_ext(Distribution({"ext_modules": extensions}))
        command.build_lib, command.build_temp = str(scratch / "lib"), str(scratch / "objects")
        command.parallel = os.cpu_count()
        command.ensure_finalized()
        command.run()


if __name__ == "__main__":
    main()
