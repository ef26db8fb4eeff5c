"""Checks the machine before anything starts, for example ports and memory; each problem is one sentence."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from aegaeon_operator.errors import PreflightError
from aegaeon_operator.reconcile import LocalSettings, PodRole, reconcile
from aegaeon_operator.reconcile.local import gateway_port
from aegaeon_operator.spec import Pool
from aegaeon_operator.spec.overhead import outside_bytes
from aegaeon_operator.spec.quantity import format_quantity
from aegaeon_operator.spec.tenancy import Claim, claims, hashes_of, shared_keys
from aegaeon_proto.backends import BACKENDS


@dataclass(frozen=True, slots=True)
class Machine:
    """Free bytes of a machine: in the shared-memory folder, and of memory in total."""

    shared_memory: Path
    shared_memory_free: int
    memory_free: int


def look(shared_memory: Path) -> Machine:
    """Measure this machine, with the memory limit of its container."""
    stat = os.statvfs(shared_memory)
    return Machine(shared_memory, stat.f_bavail * stat.f_frsize, min(_memory_available(), _cgroup_available()))


def preflight(pool: Pool, settings: LocalSettings, machine: Machine) -> None:
    """Check whether this machine can run a pool. Raises PreflightError with all problems."""
    metrics = pool.gpu_pool.spec.scheduling.metrics_port
    ports = [
        *_unusable_port(settings.host, gateway_port(pool, settings), "--port"),
        *(_unusable_port(settings.host, metrics, "spec.scheduling.metricsPort") if metrics else ()),
    ]
    problems = [*ports, *_insufficient_memory(pool, settings, machine), *missing_models(pool)]
    problems += [*unusable_keys(pool), *_no_gpu(pool, settings), *_no_backend(pool)]
    if problems:
        raise PreflightError(problems)


def port_in_use(host: str, port: int) -> str:
    """Return why a server cannot listen on a port; "" if it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)
    return ""


def _unusable_port(host: str, port: int, setting: str) -> list[str]:
    reason = port_in_use(host, port)
    return [f"port {port} on {host} cannot be used ({reason}); choose another port with {setting}"] if reason else []


def _insufficient_memory(pool: Pool, settings: LocalSettings, machine: Machine) -> list[str]:
    """Return problems of memory. Host tiers are files in shared memory; a CPU's device tier is private memory."""
    memory = pool.gpu_pool.spec.memory
    engines = sum(pod.role is PodRole.SIDECAR for pod in reconcile(pool, settings))
    shared = engines * memory.host_kv + memory.host_model_cache
    on_cpu = pool.gpu_pool.spec.accelerator.device == "cpu"
    ranks = pool.gpu_pool.spec.accelerator.count
    each = ranks * (memory.device_bytes or 0) + outside_bytes(pool.gpu_pool.spec)
    total = shared + (engines * each if on_cpu else 0)
    name, problems = pool.gpu_pool.metadata.name, []
    if shared > machine.shared_memory_free:
        problems.append(
            f"{machine.shared_memory} has {_rounded(machine.shared_memory_free)} free, but GpuPool {name} needs "
            f"{_rounded(shared)} there ({engines} x hostKv + hostModelCache); lower spec.memory.hostKv or "
            f"spec.memory.hostModelCache, or enlarge the folder (mount -o remount,size=..., docker run --shm-size=...)"
        )
    if total > machine.memory_free:
        problems.append(
            f"this machine has {_rounded(machine.memory_free)} of free memory, but GpuPool {name} needs "
            f"{_rounded(total)} for {engines} engines; lower spec.memory or the number of replicas"
        )
    return problems


def missing_models(pool: Pool) -> list[str]:
    """Return a sentence for every model and adapter whose folder does not exist."""
    places = [(f"model {model.name}", model.source) for model in pool.models]
    places += [(f"adapter {adapter.name}", adapter.source) for model in pool.models for adapter in model.adapters]
    return [
        f"{name}: folder {source.host_path} does not exist; create the quickstart's models with "
        f"`aegaeon models make`, or correct its source.hostPath"
        for name, source in places
        if source.host_path is not None and not Path(source.host_path).is_dir()
    ]


def unusable_keys(pool: Pool) -> list[str]:
    """Return a sentence for every key file that is unreadable or empty, and for every key shared by tenants."""
    problems: list[str] = []
    read: list[tuple[Claim, list[str]]] = []
    for model_pool in pool.model_pools:
        for claim in claims(pool.gpu_pool.metadata.namespace, model_pool, f"ModelPool {model_pool.metadata.name}"):
            try:
                read.append((claim, hashes_of(Path(claim.tenant.key_file or "").read_text("utf-8"))))
            except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name that no file can have
                problems.append(f"{claim.where}.keyFile: {claim.tenant.key_file} cannot be read: {error}")
    problems += [
        f"{claim.where}.keyFile: {claim.tenant.key_file} is empty; write a key to it"
        for claim, hashes in read
        if not hashes
    ]
    shared = dict.fromkeys(problem for problem, _ in shared_keys(read))
    return problems + [f"{problem.claim.pool}: {problem.place}: {problem.text}" for problem in shared]


def _no_gpu(pool: Pool, settings: LocalSettings) -> list[str]:
    """Return a sentence for every GPU that cannot be used, with its driver's error."""
    from aegaeon_native import CudaDevice, NativeError  # only where engines are started

    problems = []
    for pod in reconcile(pool, settings):
        kind, _, ordinal = str(pod.config.get("device", "")).partition(":")
        if kind != "cuda":
            continue
        name, count = pool.gpu_pool.metadata.name, pool.gpu_pool.spec.accelerator.count
        for number in range(int(ordinal), int(ordinal) + count):
            try:
                CudaDevice(number)
            except NativeError as error:
                problems.append(f"GpuPool {name}: spec.accelerator.device {kind}:{number} cannot be used: {error}")
    return problems


def _no_backend(pool: Pool) -> list[str]:
    """Return a sentence if this Python, which runs the engines, lacks the backend's package; does not import it."""
    kind = BACKENDS[pool.gpu_pool.spec.backend]
    if find_spec(kind.package) is not None:
        return []
    return [
        f"GpuPool {pool.gpu_pool.metadata.name}: spec.backend is {kind.name}, but {sys.executable} has no package "
        f"{kind.package}: {kind.install}"
    ]


def _memory_available() -> int:
    for line in Path("/proc/meminfo").read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_available() -> int:
    """Return the free memory within the container's limit, very large without one; cached file pages count as free."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text("ascii").strip()
        taken = int((folder / "memory.current").read_text("ascii"))
        detail = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
    except OSError:
        return 2**63
    return 2**63 if limit == "max" else int(limit) - taken + int(detail["inactive_file"])


def _rounded(size: int) -> str:
    return format_quantity(size >> 20 << 20) if size >= 1 << 20 else format_quantity(size)
