"""The scheduler: a pure core that decides, and the gRPC service that connects it to sidecars and gateways."""

from aegaeon_scheduler.compiled import use

COMPILED = use()
"""whether the core is compiled"""
