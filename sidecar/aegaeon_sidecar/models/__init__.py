"""What a model directory holds: config.json as a spec, safetensors as places, both checked before a byte is copied."""
