module aegaeon.io/e2e/manifests

go 1.25.0

require (
	github.com/fluxcd/kustomize-controller v1.9.6
	github.com/fluxcd/source-controller v1.9.6
	github.com/prometheus-operator/prometheus-operator v0.82.0
	sigs.k8s.io/gateway-api v1.6.1
	sigs.k8s.io/gateway-api-inference-extension v1.6.0
)
