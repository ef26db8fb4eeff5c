"""The modelled engine: executes the scheduler's commands in virtual time, like a sidecar."""
