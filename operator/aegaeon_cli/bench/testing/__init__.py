"""Scaffolding of benchmarks and tests: one engine driven by hand, and models of random weights."""
