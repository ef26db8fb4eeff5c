"""The manager: typed resources, a pure reconcile, and those who carry it out."""
