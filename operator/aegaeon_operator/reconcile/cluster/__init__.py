"""Decide for a cluster: what was observed of a pool becomes manifests, a catalog, and statuses. Pure."""
