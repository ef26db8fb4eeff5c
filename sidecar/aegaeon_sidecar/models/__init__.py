"""The contents of a model directory: config.json as a spec, safetensors as offsets, both checked before any copy."""
