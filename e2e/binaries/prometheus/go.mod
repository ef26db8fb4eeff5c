module aegaeon.io/e2e/prometheus

go 1.25.0

require github.com/prometheus/prometheus v0.311.3
