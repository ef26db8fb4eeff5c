"""KV copies: between the tiers of a sidecar and between sidecars."""
