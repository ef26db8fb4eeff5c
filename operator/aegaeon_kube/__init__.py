"""The API server as operator and picker speak to it: plain JSON over HTTP, with a pod's service account or KUBECONFIG.

Clients with a type for every kind would take 75 MB of an image and ten times the memory for the dozen kinds used here.
"""
