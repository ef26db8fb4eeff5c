"""The scheduler: a pure core that decides, and the gRPC service that connects it to sidecars and gateways."""
