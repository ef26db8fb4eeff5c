"""Measures models on this machine and fits the constants of the scheduler's latency estimates (the paper's Eq. 4-6)."""

from aegaeon_cli.calibration.copies import Copies, measure_copies, memcpy_bytes_per_s, side_by_side
from aegaeon_cli.calibration.fit import Fit, fit_copy, fit_prefill, fit_step
from aegaeon_cli.calibration.measure import Grid, Measured, grid_of, measure
from aegaeon_cli.calibration.write import DERIVED, Machine, ModelConstants, write_constants

__all__ = [
    "DERIVED",
    "Copies",
    "Fit",
    "Grid",
    "Machine",
    "Measured",
    "ModelConstants",
    "fit_copy",
    "fit_prefill",
    "fit_step",
    "grid_of",
    "measure",
    "measure_copies",
    "memcpy_bytes_per_s",
    "side_by_side",
    "write_constants",
]
