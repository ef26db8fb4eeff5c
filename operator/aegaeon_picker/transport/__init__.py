"""gRPC calls over HTTP/2, answered in the same iteration of the event loop in which a message arrives.

grpcio passes every message from its threads to asyncio's and back, which was most of what a picker added to a request
(docs/design/decisions.md). h2 implements HTTP/2, and `frames.FrameReader` charges every frame before h2 receives it.
Bottom up: limits, errors, calls, frames, budget, stream, streams, session (no I/O so far), turns, connection, server.
 Sources: gRPC over HTTP2 (grpc/doc/PROTOCOL-HTTP2.md); RFC 9113.
"""
