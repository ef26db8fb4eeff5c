"""Derives manifests, the model catalog and statuses of a pool in a cluster from its observed state. Pure functions."""
