"""The scheduler's own core on modelled engines: the pool in virtual time, and a workload's run on it."""
