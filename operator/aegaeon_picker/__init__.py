"""The endpoint picker: selects a gateway pod for each request of a stock inference gateway (Envoy's ext_proc protocol).

It runs in pods of its own. The pods of an InferencePool are the gateway replicas, which all serve every model, so the
picker needs neither body nor model: it picks the gateway with the fewest open requests.
"""
