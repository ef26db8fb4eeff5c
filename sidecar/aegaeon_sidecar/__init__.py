"""The engine of one GPU (or tensor-parallel group): it decides nothing about what runs next, only how.

Its packages lie in layers (docs/sidecar.md), from top to bottom: process; drain, metrics; rpc; engine; config; weights;
kv; memory; backends; models, sampling; domain.
"""
