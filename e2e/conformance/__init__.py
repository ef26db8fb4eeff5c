"""GIE's own conformance suite against a gateway whose endpoint picker is ours: `make conformance`."""
