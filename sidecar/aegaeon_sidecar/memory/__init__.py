"""Slabs, blocks and segments: ownership of the sidecar's memory."""
