"""The operator in a cluster: watch objects, decide (reconcile.cluster), apply differences."""
