"""The scheduler's core on a virtual clock."""
