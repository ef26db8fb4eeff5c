"""A real Kubernetes API server on one machine, in a network namespace of its own: etcd and kube-apiserver, no nodes.

It runs as root, and everything that it makes lies in one folder.
"""
