"""The brain: a pure core that decides, and the gRPC service that lets sidecars and gateways talk to it."""
