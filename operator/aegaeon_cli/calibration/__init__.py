"""Measures models on this machine and fits the constants of the scheduler's latency estimates (the paper's Eq. 4-6)."""

from aegaeon_cli.calibration.fit import Fit, fit_prefill, fit_step
from aegaeon_cli.calibration.measure import Grid, Measured, copy_bytes_per_s, measure
from aegaeon_cli.calibration.write import ModelConstants, write_constants

__all__ = [
    "Fit",
    "Grid",
    "Measured",
    "ModelConstants",
    "copy_bytes_per_s",
    "fit_prefill",
    "fit_step",
    "measure",
    "write_constants",
]
