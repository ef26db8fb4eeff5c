"""`aegaeon calibrate`: how long this machine takes for prefills, decode steps and copies of a pool's models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aegaeon_cli.errors import BadFileError
from aegaeon_cli.folders import constants_file, models_folder
from aegaeon_cli.options import manifests_option, models_option

if TYPE_CHECKING:
    from aegaeon_cli.calibration import ModelConstants
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
    """Measure the models of DIR on this machine and write the constants that `aegaeon up` hands to the scheduler.

    \b
    Example:
      aegaeon calibrate -f examples/quickstart/
    """
    from aegaeon_cli.calibration import copy_bytes_per_s, write_constants
    from aegaeon_operator.spec import load_manifests

    found = []
    link = copy_bytes_per_s(rounds)
    click.echo(f"copies: {link / 1e9:.2f} GB/s")
    for pool in load_manifests(manifests, models or models_folder()).pools:
        _configure(pool)
        found += [_calibrate(pool, model, link, rounds) for model in pool.models if _measurable(model)]
    if not found:
        raise BadFileError(f"{manifests}: no model can be measured; give one with source.hostPath")
    target = output or constants_file()
    write_constants(target, found)
    click.echo(f"wrote {target}")


def _configure(pool: Pool) -> None:
    from aegaeon_sidecar.backends.torch import configure_threads

    spec = pool.gpu_pool.spec
    if spec.accelerator.device != "cpu":
        raise BadFileError(
            f"GpuPool {pool.gpu_pool.metadata.name}: spec.accelerator.device {spec.accelerator.device} cannot be "
            f"measured; allowed: cpu"
        )
    configure_threads(spec.tuning.threads)


def _measurable(model: ServedModel) -> bool:
    if model.source.host_path is None:
        click.echo(f"{model.name}: skipped, as it is on the hub; give a folder in source.hostPath to measure it")
    return model.source.host_path is not None


def _calibrate(pool: Pool, model: ServedModel, link: float, rounds: int) -> ModelConstants:
    from aegaeon_cli.calibration import Grid, ModelConstants, fit_prefill, fit_step, measure
    from aegaeon_sidecar.errors import SidecarError

    accelerator = pool.gpu_pool.spec.accelerator
    assert model.source.host_path is not None  # `_measurable` has seen to it
    try:
        measured = measure(
            Path(model.source.host_path), accelerator.dtype, model.max_model_len or 0, Grid(rounds=rounds)
        )
    except SidecarError as error:
        raise BadFileError(f"model {model.name}: {error}") from error
    step, prefill = fit_step(measured.step), fit_prefill(measured.prefill)
    click.echo(
        f"{model.name}: decode step R^2 {step.r2:.3f}, mean error {step.mean_error:.1%}; "
        f"prefill R^2 {prefill.r2:.3f}, mean error {prefill.mean_error:.1%}"
    )
    floor = min(seconds for _, seconds in measured.prefill)
    return ModelConstants(model.name, accelerator.device, step, prefill, floor, link)
