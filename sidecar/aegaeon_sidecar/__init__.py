"""The engine of one GPU (or tensor-parallel group): it decides nothing about what runs next, only how."""
