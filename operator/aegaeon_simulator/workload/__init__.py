"""Sources of the simulator's requests: traces read from files, and Poisson traces with the paper's mix."""

from aegaeon_simulator.workload.errors import TraceError, WorkloadError
from aegaeon_simulator.workload.model import Arrival, Workload
from aegaeon_simulator.workload.poisson import Lengths, poisson
from aegaeon_simulator.workload.trace import read_trace

__all__ = ["Arrival", "Lengths", "TraceError", "Workload", "WorkloadError", "poisson", "read_trace"]
