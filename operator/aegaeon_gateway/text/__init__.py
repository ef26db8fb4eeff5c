"""Token ids to text: decoders, detokenization, stop strings."""
