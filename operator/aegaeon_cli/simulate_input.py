"""The options of `aegaeon simulate`, as runs; refuses what cannot be run or would be ignored."""

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
_LONGEST_IDLE_S = 1e6  # idle engines report twice a second, too: a longer gap takes minutes


def runs_of(options: dict[str, Any]) -> list[Run]:
    """One run for each seed. Raises CliError, SimulatorError, WorkloadError."""
    from aegaeon_simulator.devices import Machines, read_device
    from aegaeon_simulator.run import Run

    _check(options)
    settings = _settings(options)
    settings.check()
    device = _with_host(read_device(options["device"]), options["host_cache"], options["disk"])
    also = tuple(_more(text, options) for text in options["also"])
    seeds = range(options["seed"], options["seed"] + options["seeds"])
    workloads = [_shaped(options, workload) for workload in _workloads(options, seeds, Machines.of(device, also).kinds)]
    return [
        Run(_with_slos(settings, options, workload), workload, device, seed, also)
        for seed, workload in zip(seeds, workloads, strict=True)
    ]


def _with_slos(settings: Settings, options: dict[str, Any], workload: Workload) -> Settings:
    """Each model's own objective, where a file gives them; scaled as the others are."""
    if options["slos"] is None:
        return settings
    from aegaeon_scheduler.core.domain import Slo
    from aegaeon_simulator.workload.objectives import read_slos

    scale = options["slo_scale"]
    defaults = [Slo(options["slo_ttft"], options["slo_tbt"])] * len(workload.names)
    slos = read_slos(options["slos"], workload.names, defaults)
    return replace(settings, slos=tuple(Slo(slo.ttft_s * scale, slo.tbt_s * scale) for slo in slos))


def _check(options: dict[str, Any]) -> None:
    """Refuse options that would silently be ignored."""
    from aegaeon_simulator.settings import POLICIES, PRODUCTION

    if options["seeds"] < 1:
        raise CliError(f"--seeds {options['seeds']}: at least one run is needed")
    idle = [f"--{name}" for name in ("rate", "duration") if options[name] is not None]
    if options["trace"] is not None and idle:
        raise CliError(f"--trace has its own arrivals; remove {' and '.join(idle)}")
    policy, able = options["policy"], " or ".join(PRODUCTION)
    if policy not in POLICIES or policy in PRODUCTION:
        return
    if options["admission"] != "none":
        raise CliError(
            f"--admission {options['admission']}: policy {policy} has no admission control; use --policy {able}"
        )
    if options["kv_gate"]:
        raise CliError(f"--kv-gate {options['kv_gate']}: policy {policy} knows no KV gate; use --policy {able}")


def _check_gaps(workload: Workload, trace: Path | None) -> None:
    """Refuse calendar times and years of silence, which would take hours to simulate."""
    source, before = trace or "--rate", 0.0
    for index, arrival in enumerate(workload.arrivals):
        if arrival.t_s - before > _LONGEST_IDLE_S:
            silence = f"{source}: no request arrives from {before:.10g} s to {arrival.t_s:.10g} s"
            remedy = "cut the trace there, or raise --speedup" if index else "subtract the first time from every t_s"
            raise CliError(f"{silence}, and at most {_LONGEST_IDLE_S:g} s are simulated; {remedy}")
        before = arrival.t_s


def _more(text: str, options: dict[str, Any]) -> More:
    from aegaeon_simulator.devices import More, read_device

    count, _, name = text.partition(":")
    if not (count.isdecimal() and int(count) and name):
        raise CliError(f"--also {text}: not of the form N:NAME; write a number, a colon and a device, such as 4:a10")
    return More(int(count), _with_host(read_device(name), options["host_cache"], options["disk"]))


def _with_host(device: Device, cache_gb: float | None, disk_gb_per_s: float) -> Device:
    if cache_gb is None:
        return device
    if cache_gb <= 0 or disk_gb_per_s <= 0:
        raise CliError("--host-cache and --disk must be more than 0")
    return replace(device, host_cache_bytes=int(cache_gb * 1e9), disk_bytes_per_s=disk_gb_per_s * 1e9)


def _settings(options: dict[str, Any]) -> Settings:
    from aegaeon_scheduler.core.domain import Slo
    from aegaeon_simulator.settings import Settings, Split, default_split

    counts = [options["prefill"], options["decode"], options["unified"]]
    split = default_split(options["policy"]) if counts == [None] * 3 else Split(*(n or 0 for n in counts))
    slo = Slo(options["slo_ttft"] * options["slo_scale"], options["slo_tbt"] * options["slo_scale"])
    gate = (options["kv_gate"] or 0) / 100
    return Settings(options["policy"], split, slo, options["drain"], admission=options["admission"], kv_gate=gate)


def _workloads(options: dict[str, Any], seeds: Sequence[int], known: Collection[str]) -> list[Workload]:
    """One workload for each seed; a trace is the same for all."""
    if options["trace"] is not None:
        return [_trace(options, known)] * len(seeds)
    return _poisson(options, seeds, known)


def _shaped(options: dict[str, Any], workload: Workload) -> Workload:
    """Apply the terms, kinds, scales and limits of the options."""
    if options["models_file"] is not None:
        from aegaeon_simulator.workload.terms import with_terms

        workload = with_terms(workload, options["models_file"])
    if options["mix"]:
        from aegaeon_simulator.workload.kinds import paper_kind

        workload = replace(workload, kinds=tuple(paper_kind(m) for m in range(len(workload.kinds))))
    scaled = workload.scaled(
        time=options["speedup"], input_tokens=options["input_scale"], output_tokens=options["output_scale"]
    )
    capped = scaled.capped(options["cap_input"] or _NO_CAP, options["cap_output"] or _NO_CAP)
    shaped = capped if options["window"] is None else capped.window(options["window"])
    _check_gaps(shaped, options["trace"])
    return shaped


def _poisson(options: dict[str, Any], seeds: Sequence[int], known: Collection[str]) -> list[Workload]:
    from aegaeon_simulator.workload import Lengths, poisson

    if options["rate"] is None or options["models"] is None:
        raise CliError("no requests: add --trace FILE, or --rate and --models for Poisson arrivals")
    lengths, kinds = Lengths.packaged(), _kinds(options, known)
    return [
        poisson(
            lengths,
            models=options["models"],
            rate=options["rate"],
            duration_s=options["duration"] or POISSON_S,
            seed=seed,
            kind=lambda model: kinds[model % len(kinds)],
        )
        for seed in seeds
    ]


def _kinds(options: dict[str, Any], known: Collection[str]) -> tuple[str, ...]:
    """Kinds to assign in turn: --kind, else the paper's mix; all known kinds when it is not known or with --also."""
    from aegaeon_simulator.workload.kinds import PAPER_MIX, canonical

    kind = options["kind"]
    if kind is not None:
        return (kind if kind in known else canonical(kind) or kind,)
    return PAPER_MIX if set(known) >= set(PAPER_MIX) and not options["also"] else tuple(known)


def _trace(options: dict[str, Any], known: Collection[str]) -> Workload:
    from aegaeon_simulator.workload import read_trace

    kind = options["kind"] or (next(iter(known)) if options["mix"] else None)
    workload = read_trace(options["trace"], models_file=options["models_file"], kind=kind, known=known)
    return workload if options["models"] is None else workload.first_models(options["models"])
