"""KV cache on the move: between the tiers of a sidecar and between sidecars."""
