"""What `aegaeon simulate` is asked for, as runs; what cannot be run, or would be ignored, is refused in a sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aegaeon_cli.errors import CliError

if TYPE_CHECKING:
    from aegaeon_simulator.devices import Device, More
    from aegaeon_simulator.run import Run
    from aegaeon_simulator.settings import Settings
    from aegaeon_simulator.workload import Workload

POISSON_S = 300.0
_NO_CAP = 1 << 40  # tokens
_LONGEST_IDLE_S = 1e6  # engines report twice a second, also while nothing is asked: a longer gap takes minutes


def runs_of(given: dict[str, Any]) -> list[Run]:
    """One run for each seed. Raises CliError, SimulatorError, WorkloadError."""
    from aegaeon_simulator.devices import Machines, read_device
    from aegaeon_simulator.run import Run

    _check(given)
    settings = _settings(given)
    settings.check()
    device = _with_host(read_device(given["device"]), given["host_cache"], given["disk"])
    also = tuple(_more(text, given) for text in given["also"])
    seeds = range(given["seed"], given["seed"] + given["seeds"])
    workloads = [_shaped(given, workload) for workload in _workloads(given, seeds, Machines.of(device, also).kinds)]
    return [Run(settings, workload, device, seed, also) for seed, workload in zip(seeds, workloads, strict=True)]


def _check(given: dict[str, Any]) -> None:
    """What would be ignored in silence is refused."""
    from aegaeon_simulator.settings import POLICIES, PRODUCTION

    if given["seeds"] < 1:
        raise CliError(f"--seeds {given['seeds']}: at least one run is needed")
    idle = [f"--{name}" for name in ("rate", "duration") if given[name] is not None]
    if given["trace"] is not None and idle:
        raise CliError(f"--trace brings its own arrivals; leave {' and '.join(idle)} out")
    policy = given["policy"]
    if given["admission"] != "none" and policy in POLICIES and policy not in PRODUCTION:
        able = " or ".join(PRODUCTION)
        raise CliError(f"--admission {given['admission']}: {policy} refuses no request; give --policy {able}")


def _check_gaps(workload: Workload, trace: Path | None) -> None:
    """Times of a calendar, or years of silence, would be walked through for hours."""
    source, before = trace or "--rate", 0.0
    for index, arrival in enumerate(workload.arrivals):
        if arrival.t_s - before > _LONGEST_IDLE_S:
            silence = f"{source}: no request comes from {before:.10g} s to {arrival.t_s:.10g} s"
            remedy = "cut it there, or raise --speedup" if index else "subtract the first time from every t_s"
            raise CliError(f"{silence}, and {_LONGEST_IDLE_S:g} s is the most that is simulated; {remedy}")
        before = arrival.t_s


def _more(text: str, given: dict[str, Any]) -> More:
    from aegaeon_simulator.devices import More, read_device

    count, _, name = text.partition(":")
    if not (count.isdecimal() and int(count) and name):
        raise CliError(f"--also {text}: not N:NAME; give how many, a colon, and a device, such as 4:a10")
    return More(int(count), _with_host(read_device(name), given["host_cache"], given["disk"]))


def _with_host(device: Device, cache_gb: float | None, disk_gb_per_s: float) -> Device:
    if cache_gb is None:
        return device
    if cache_gb <= 0 or disk_gb_per_s <= 0:
        raise CliError("--host-cache and --disk must be more than 0")
    return replace(device, host_cache_bytes=int(cache_gb * 1e9), disk_bytes_per_s=disk_gb_per_s * 1e9)


def _settings(given: dict[str, Any]) -> Settings:
    from aegaeon_scheduler.core.domain import Slo
    from aegaeon_simulator.settings import Settings, Split, default_split

    counts = [given["prefill"], given["decode"], given["unified"]]
    split = default_split(given["policy"]) if counts == [None] * 3 else Split(*(n or 0 for n in counts))
    slo = Slo(given["slo_ttft"] * given["slo_scale"], given["slo_tbt"] * given["slo_scale"])
    return Settings(given["policy"], split, slo, given["drain"], admission=given["admission"])


def _workloads(given: dict[str, Any], seeds: Sequence[int], known: Collection[str]) -> list[Workload]:
    """One for each seed; a trace is the same for all."""
    if given["trace"] is not None:
        return [_trace(given, known)] * len(seeds)
    return _poisson(given, seeds, known)


def _shaped(given: dict[str, Any], workload: Workload) -> Workload:
    """With the terms, kinds, scales and limits that are asked for."""
    if given["models_file"] is not None:
        from aegaeon_simulator.workload.terms import with_terms

        workload = with_terms(workload, given["models_file"])
    if given["mix"]:
        from aegaeon_simulator.workload.kinds import paper_kind

        workload = replace(workload, kinds=tuple(paper_kind(m) for m in range(len(workload.kinds))))
    scaled = workload.scaled(
        time=given["speedup"], input_tokens=given["input_scale"], output_tokens=given["output_scale"]
    )
    capped = scaled.capped(given["cap_input"] or _NO_CAP, given["cap_output"] or _NO_CAP)
    shaped = capped if given["window"] is None else capped.window(given["window"])
    _check_gaps(shaped, given["trace"])
    return shaped


def _poisson(given: dict[str, Any], seeds: Sequence[int], known: Collection[str]) -> list[Workload]:
    from aegaeon_simulator.workload import Lengths, poisson

    if given["rate"] is None or given["models"] is None:
        raise CliError("no requests: give --trace FILE, or --rate and --models for Poisson arrivals")
    lengths, kinds = Lengths.packaged(), _kinds(given, known)
    return [
        poisson(
            lengths,
            models=given["models"],
            rate=given["rate"],
            duration_s=given["duration"] or POISSON_S,
            seed=seed,
            kind=lambda model: kinds[model % len(kinds)],
        )
        for seed in seeds
    ]


def _kinds(given: dict[str, Any], known: Collection[str]) -> tuple[str, ...]:
    """In turn: the one that is asked for, else the paper's mix; where it is not known or --also is given, all known."""
    from aegaeon_simulator.workload.kinds import PAPER_MIX, canonical

    kind = given["kind"]
    if kind is not None:
        return (kind if kind in known else canonical(kind) or kind,)
    return PAPER_MIX if set(known) >= set(PAPER_MIX) and not given["also"] else tuple(known)


def _trace(given: dict[str, Any], known: Collection[str]) -> Workload:
    from aegaeon_simulator.workload import read_trace

    kind = given["kind"] or (next(iter(known)) if given["mix"] else None)
    workload = read_trace(given["trace"], models_file=given["models_file"], kind=kind, known=known)
    return workload if given["models"] is None else workload.first_models(given["models"])
