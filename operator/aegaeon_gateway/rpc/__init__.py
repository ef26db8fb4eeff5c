"""The gateway's gRPC side: the scheduler's stream and the token sink."""
