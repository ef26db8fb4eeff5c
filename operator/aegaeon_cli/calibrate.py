"""`aegaeon calibrate`: the durations of prefills, decode steps and copies of a pool's models on this machine."""

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
    from aegaeon_native import CudaDevice
    from aegaeon_operator.spec import Pool, ServedModel


@click.command()
@manifests_option
@models_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write the constants to.  [default: ~/.cache/aegaeon/constants.json]",
)
@click.option(
    "--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Measurements of each median."
)
def calibrate(*, manifests: Path, models: Path | None, output: Path | None, rounds: int) -> None:
    """Measure the models of DIR on this machine: prefills, decode steps, copies of weights and KV, reading from disk.

    Writes the constants to a file: `aegaeon up` passes it to the scheduler, `aegaeon simulate --device` reads it.

    \b
    Example:
      aegaeon calibrate -f examples/quickstart/
    """
    from aegaeon_cli.calibration import memcpy_bytes_per_s, side_by_side
    from aegaeon_operator.spec import load_manifests

    pools = [(pool, _open(pool)) for pool in load_manifests(manifests, models or models_folder()).pools]
    memcpy = memcpy_bytes_per_s(rounds)
    beside = side_by_side(rounds, pools[0][1])
    click.echo(f"memcpy: {_rate(memcpy)}; a copy beside another in the opposite direction takes {beside:.2f} x as long")
    calibrated = [
        _calibrate(pool, gpu, model, rounds) for pool, gpu in pools for model in pool.models if _measurable(model)
    ]
    if not calibrated:
        raise BadFileError(f"{manifests}: no model can be measured; add one with source.hostPath")
    _write(output or constants_file(), calibrated, memcpy, beside)


def _open(pool: Pool) -> CudaDevice | None:
    """The GPU of the pool's first engine; None: engines run on CPUs. Raises BadFileError when it cannot be measured."""
    from aegaeon_native import NativeError
    from aegaeon_sidecar.backends.torch import configure_threads
    from aegaeon_sidecar.memory.gpu import open_gpu

    name, spec = pool.gpu_pool.metadata.name, pool.gpu_pool.spec
    if spec.accelerator.count != 1:
        raise BadFileError(
            f"GpuPool {name}: spec.accelerator.count {spec.accelerator.count} cannot be measured; allowed: 1"
        )
    if spec.memory.device_bytes is None:
        raise BadFileError(f"GpuPool {name}: spec.memory.deviceBytes is missing; set it, as the simulator needs it")
    configure_threads(spec.threads)
    try:
        return open_gpu(spec.accelerator.device)
    except NativeError as error:
        raise BadFileError(
            f"GpuPool {name}: spec.accelerator.device {spec.accelerator.device} cannot be used: {error}"
        ) from error


def _measurable(model: ServedModel) -> bool:
    if model.source.host_path is None:
        click.echo(f"{model.name}: skipped, as its source is not a folder; set source.hostPath to measure it")
    return model.source.host_path is not None


@dataclass(frozen=True, slots=True)
class _Calibrated:
    """A model's constants, and the facts of its pool that the simulator needs."""

    pool: Pool
    constants: ModelConstants
    block_tokens: int
    disk_bytes_per_s: float
    stall_s_per_byte: float


def _calibrate(pool: Pool, gpu: CudaDevice | None, model: ServedModel, rounds: int) -> _Calibrated:
    from aegaeon_cli.calibration import grid_of, measure, measure_copies
    from aegaeon_native import NativeError
    from aegaeon_sidecar.domain.errors import SidecarError
    from aegaeon_sidecar.memory.gpu import make_of

    spec = pool.gpu_pool.spec
    assert model.source.host_path is not None  # `_measurable` checked it
    directory, slab_bytes, length = Path(model.source.host_path), spec.memory.slab_size, model.max_model_len or 0
    try:
        grid = grid_of(gpu, rounds)
        measured = measure(directory, spec.accelerator.dtype, length, grid, slab_bytes, model.task or "", gpu)
        copies = measure_copies(measured.layout, slab_bytes, rounds, gpu)
    except (SidecarError, NativeError) as error:
        raise BadFileError(f"model {model.name}: {error}") from error
    constants = _constants(model.name, make_of((gpu,)), measured, copies)
    _tell(constants, measured.disk_bytes_per_s)
    if grid.loads:
        click.echo(f"  a load delays the steps beside it by {1e3 * measured.stall_s_per_byte * 1e9:.2g} ms per GB")
    block_tokens = measured.layout.kv_block_tokens
    return _Calibrated(pool, constants, block_tokens, measured.disk_bytes_per_s, measured.stall_s_per_byte)


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


def _write(target: Path, calibrated: list[_Calibrated], memcpy: float, beside: float) -> None:
    """Write the constants. The first pool's engine is the simulator's device."""
    from aegaeon_cli.calibration import DERIVED, Machine, write_constants

    spec, block_tokens = calibrated[0].pool.gpu_pool.spec, calibrated[0].block_tokens
    assert spec.memory.device_bytes is not None  # `_open` checked it
    machine = Machine(
        memcpy,
        beside,
        median(c.stall_s_per_byte for c in calibrated),
        median(c.disk_bytes_per_s for c in calibrated),
        spec.memory.device_bytes,
        spec.memory.slab_size,
        block_tokens,
        spec.max_batch,
        spec.memory.host_kv,
    )
    write_constants(target, [c.constants for c in calibrated], machine)
    for line in DERIVED:
        click.echo(f"not measured: {line}")
    click.echo(f"wrote {target}, for aegaeon up and aegaeon simulate --device {target}")
