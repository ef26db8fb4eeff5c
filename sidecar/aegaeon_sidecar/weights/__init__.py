"""Models on their way to the device: fetched, cached on the host, loaded and unloaded."""
