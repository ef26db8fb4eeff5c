"""The Kubernetes client of operator and picker: plain JSON over HTTP, with a pod's service account or KUBECONFIG.

Typed clients for every kind would take 75 MB of an image and ten times the memory for the dozen kinds in use.
"""
