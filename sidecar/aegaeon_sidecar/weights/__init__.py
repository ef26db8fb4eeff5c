"""Model weights: fetched, cached on the host, loaded to the device and unloaded."""
