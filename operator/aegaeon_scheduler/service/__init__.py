"""The gRPC service around the core: streams to sidecars and gateways, timers, metrics, status.

One asyncio loop; the driver alone touches the core, and everything that reaches it is a plain call in that loop.
"""
