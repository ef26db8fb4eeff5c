"""The modelled engine: what a sidecar does with the scheduler's commands, in virtual time."""
