"""The operator: typed resources, a pure reconcile function, and the processes or objects that realise its result."""
