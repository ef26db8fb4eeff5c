"""A day on a GPU in half an hour of one: an ordered, resumable plan that keeps every figure at once (docs/gpu.md)."""
