"""The engine of one GPU (or tensor-parallel group): it executes what the scheduler decides.

Its packages form layers (docs/sidecar.md), from top to bottom: process; drain, metrics; rpc; engine; config; weights;
kv; memory; backends; models, sampling; domain.
"""
