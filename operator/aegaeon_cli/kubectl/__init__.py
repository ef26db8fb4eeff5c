"""`kubectl aegaeon`: pools of a cluster as `aegaeon` shows those of a machine. It needs no address of the cluster's
network and no certificate: what it asks goes through the API server, as the rights of its user allow.
"""
