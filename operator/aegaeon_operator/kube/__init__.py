"""Act in a cluster: watch what is there, decide (reconcile.cluster), apply what differs."""
