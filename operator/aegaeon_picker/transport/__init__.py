"""gRPC calls over HTTP/2, answered in the very turn of the event loop in which a message arrives.

grpcio passes every message from its threads to asyncio's and back, which was most of what a picker added to a request
(docs/design/decisions.md). Here h2 speaks HTTP/2, and every frame is charged by `frames.FrameReader` before h2 sees it.
Bottom up: limits, errors, calls, frames, budget, stream, streams, session (no I/O so far), turns, connection, server.
 Sources: gRPC over HTTP2 (grpc/doc/PROTOCOL-HTTP2.md); RFC 9113.
"""
