"""The figures on README.md, docs/measured.md, docs/gpu*.md and the guides: fields that `make generate` fills from
benchmarks/results by the table benchmarks/figures.toml. docs/reference/figures.md says how to add one."""
