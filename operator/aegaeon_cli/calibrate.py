"""`aegaeon calibrate`: how long this machine takes for prefills, decode steps and copies of a pool's models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import click

from aegaeon_cli.errors import BadFileError
from aegaeon_cli.folders import constants_file, models_folder
from aegaeon_cli.options import manifests_option, models_option

if TYPE_CHECKING:
    from aegaeon_cli.calibration import Copies, Measured, ModelConstants
    from aegaeon_operator.spec import Pool, ServedModel


@click.command()
@manifests_option
@models_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where to write the constants.  [default: ~/.cache/aegaeon/constants.json]",
)
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Medians of so many.")
def calibrate(*, manifests: Path, models: Path | None, output: Path | None, rounds: int) -> None:
    """Measure the models of DIR on this machine: prefills, decode steps, copies of weights and KV, reading from disk.

    The constants go to a file that `aegaeon up` hands to the scheduler, and that is a device for `aegaeon simulate`.

    \b
    Example:
      aegaeon calibrate -f examples/quickstart/
    """
    from aegaeon_cli.calibration import memcpy_bytes_per_s, side_by_side
    from aegaeon_operator.spec import load_manifests

    memcpy = memcpy_bytes_per_s(rounds)
    beside = side_by_side(rounds)
    click.echo(f"memcpy: {_rate(memcpy)}; two copies at once take {beside:.2f} x as long")
    found: list[_Calibrated] = []
    for pool in load_manifests(manifests, models or models_folder()).pools:
        _configure(pool)
        found += [_calibrate(pool, model, rounds) for model in pool.models if _measurable(model)]
    if not found:
        raise BadFileError(f"{manifests}: no model can be measured; give one with source.hostPath")
    _write(output or constants_file(), found, memcpy, beside)


def _configure(pool: Pool) -> None:
    from aegaeon_sidecar.backends.torch import configure_threads

    spec = pool.gpu_pool.spec
    for field, given, allowed in (("device", spec.accelerator.device, "cpu"), ("count", spec.accelerator.count, 1)):
        if given != allowed:
            raise BadFileError(
                f"GpuPool {pool.gpu_pool.metadata.name}: spec.accelerator.{field} {given} cannot be measured; "
                f"allowed: {allowed}"
            )
    configure_threads(spec.tuning.threads)


def _measurable(model: ServedModel) -> bool:
    if model.source.host_path is None:
        click.echo(f"{model.name}: skipped, as it is on the hub; give a folder in source.hostPath to measure it")
    return model.source.host_path is not None


@dataclass(frozen=True, slots=True)
class _Calibrated:
    """A model's constants, and what the simulator needs of its pool."""

    pool: Pool
    constants: ModelConstants
    block_tokens: int
    disk_bytes_per_s: float


def _calibrate(pool: Pool, model: ServedModel, rounds: int) -> _Calibrated:
    from aegaeon_cli.calibration import Grid, measure, measure_copies
    from aegaeon_sidecar.domain.errors import SidecarError

    spec = pool.gpu_pool.spec
    assert model.source.host_path is not None  # `_measurable` has seen to it
    directory = Path(model.source.host_path)
    try:
        grid, length = Grid(rounds=rounds), model.max_model_len or 0
        measured = measure(directory, spec.accelerator.dtype, length, grid, model.task or "")
        copies = measure_copies(directory, measured.layout, spec.memory.slab_size, rounds)
    except SidecarError as error:
        raise BadFileError(f"model {model.name}: {error}") from error
    constants = _constants(model.name, spec.accelerator.device, measured, copies)
    _tell(constants, copies.disk_bytes_per_s)
    return _Calibrated(pool, constants, measured.layout.kv_block_tokens, copies.disk_bytes_per_s)


def _constants(name: str, device: str, measured: Measured, copies: Copies) -> ModelConstants:
    from aegaeon_cli.calibration import ModelConstants, fit_copy, fit_prefill, fit_step

    layout = measured.layout
    return ModelConstants(
        name,
        device,
        step=fit_step(measured.step),
        prefill=fit_prefill(measured.prefill),
        load=fit_copy(copies.load),
        kv=fit_copy(copies.kv),
        floor_s=min(seconds for _, seconds in measured.prefill),
        weight_bytes=layout.weight_bytes,
        kv_bytes_per_token=layout.kv_block_bytes // layout.kv_block_tokens,
        context_tokens=layout.max_model_len,
    )


def _tell(constants: ModelConstants, disk_bytes_per_s: float) -> None:
    click.echo(f"{constants.model}: from disk at {_rate(disk_bytes_per_s)}; shortest prefill {constants.floor_s:.2g} s")
    for name, fit in constants.fits().items():
        rate = f" at {_rate(1 / fit.coefficients[0])}" if len(fit.coefficients) == 1 else ""
        click.echo(f"  {name}{rate}: R^2 {fit.r2:.3f}, mean error {fit.mean_error:.1%}")


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2f} GB/s"


def _write(target: Path, found: list[_Calibrated], memcpy: float, beside: float) -> None:
    """The first pool's engine is the simulator's device."""
    from aegaeon_cli.calibration import DERIVED, Machine, write_constants

    spec, block_tokens = found[0].pool.gpu_pool.spec, found[0].block_tokens
    assert spec.memory.device_bytes is not None  # CPUs alone are measured
    machine = Machine(
        memcpy,
        beside,
        median(c.disk_bytes_per_s for c in found),
        spec.memory.device_bytes,
        spec.memory.slab_size,
        block_tokens,
        spec.max_batch,
        spec.memory.host_kv,
    )
    write_constants(target, [c.constants for c in found], machine)
    for line in DERIVED:
        click.echo(f"not measured: {line}")
    click.echo(f"wrote {target}, for aegaeon up and aegaeon simulate --device {target}")
