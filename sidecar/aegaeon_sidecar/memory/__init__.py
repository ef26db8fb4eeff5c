"""Slabs, blocks and segments: who owns which memory of the sidecar."""
