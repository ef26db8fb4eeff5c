"""The endpoint picker: tells a stock inference gateway (Envoy's ext_proc protocol) which of our gateway pods to use.

A process of its own beside a pool's gateways. The pods of an InferencePool are the gateway replicas, and every one of
them takes every model, so the pick needs no body and no model: the gateway with the fewest open requests is picked.
"""
