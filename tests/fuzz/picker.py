"""The endpoint picker: frames of HTTP/2, gRPC's framing in them, messages of Envoy's external processing."""

from __future__ import annotations

from pathlib import Path

from fuzz.shape import Draw, message, raw, received
from fuzz.target import One, Target
from picker.hostile import (
    DATA,
    HEADERS,
    PREFACE,
    PROCESS,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    grpc_message,
    settings,
)

from aegaeon_proto.envoy import ext_proc_pb2 as ext_proc


def _headers(draw: Draw) -> bytes:
    """A literal header block without an index, mostly the one that opens a call."""
    headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", PROCESS.encode()), (b":authority", b"a")]
    if not draw.below(4):
        headers[draw.below(4)] = (draw.bytes(10).lower(), draw.bytes(30))
    if not draw.below(3):
        headers += [(b"x-%d" % i, draw.bytes(100)) for i in range(draw.below(30))]
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)


def _text(value: bytes) -> bytes:
    return bytes((len(value),)) + value if len(value) < 127 else b"\x7f" + b"\x00" + value[:127]


def _frame(draw: Draw) -> bytes:
    stream = draw.one_of((1, 3, 5, 7, 0, 2, 2**31 - 1))
    match draw.below(10):
        case 0 | 1:
            return frame(HEADERS, flags=draw.one_of((4, 5, 0, 0x24)), stream=stream, payload=_headers(draw))
        case 2 | 3 | 4:
            body = message(draw, ext_proc.ProcessingRequest).SerializeToString()
            length = len(body) if draw.below(6) else draw.below(2**32)
            flags, compressed = draw.one_of((0, 1)), draw.one_of((0, 0, 0, 1))
            return frame(DATA, stream, grpc_message(body, compressed, length), flags)
        case 5:
            return frame(RST_STREAM, stream, draw.below(2**32).to_bytes(4))
        case 6:
            identifier, value = draw.below(8), draw.one_of((0, 1, 65535, 2**31 - 1, 2**32 - 1))
            return frame(SETTINGS, flags=draw.one_of((0, 1)), payload=identifier.to_bytes(2) + value.to_bytes(4))
        case 7:
            return frame(WINDOW_UPDATE, draw.one_of((0, stream)), draw.one_of((0, 1, 65535, 2**31 - 1)).to_bytes(4))
        case 8:
            kind, flags = draw.one_of((6, 7, 9, 2, 10, 200)), draw.below(256)
            return frame(kind, draw.one_of((0, stream)), draw.bytes(20), flags)
        case _:
            return draw.bytes(60)


def _frames(_: Path) -> One:
    """A session without its transport, on a clock of its own; what it holds is on the books of a port's budget."""
    from aegaeon_picker.fleet import Endpoint, Fleet
    from aegaeon_picker.metrics import Metrics
    from aegaeon_picker.server import Picker
    from aegaeon_picker.transport.budget import Budget
    from aegaeon_picker.transport.errors import PeerError
    from aegaeon_picker.transport.limits import Limits
    from aegaeon_picker.transport.rejections import Rejections
    from aegaeon_picker.transport.session import Session

    fleet = Fleet()
    fleet.update([Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)])
    methods = Picker(fleet, Metrics(fleet), conformance=False).methods
    limits = Limits()

    def feed(data: bytes) -> None:
        body, draw, now = raw(data), Draw(data[1:]), 0.0
        pieces = [PREFACE + body] if body is not None else [PREFACE + settings()]
        if body is None:
            pieces += [b"".join(_frame(draw) for _ in range(1 + draw.below(4))) for _ in range(1 + draw.below(8))]
        budget = Budget(limits)
        rejections = Rejections(lambda scope, reason: None, lambda: now)
        session = Session(methods, budget, rejections, "fuzz", lambda: now, lambda: None)
        for piece in pieces:
            try:
                session.add(piece)
                while session.work(now + 1.0):
                    pass
                session.check()
            except PeerError as fault:
                session.end(fault)
            budget.check()
            assert budget.bytes <= limits.buffered_bytes
            session.to_send()
            now += draw.one_of((0.0, 0.001, 1.0, 1000.0))
        session.close()
        assert budget.bytes == 0, "a session that is over holds bytes"
        assert budget.streams == 0, "a session that is over holds streams"

    return feed


def _messages(_: Path) -> One:
    from aegaeon_picker.exchange import Exchange
    from aegaeon_picker.fleet import Endpoint, Fleet
    from aegaeon_picker.transport.errors import CallError

    fleet = Fleet()
    fleet.update([Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)])
    words = ("envoy.lb", "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", "127.0.0.1:1", ":path")

    def feed(data: bytes) -> None:
        body, draw = raw(data), Draw(data[1:])
        exchange = Exchange(fleet)
        for _ in range(4):
            request = received(body, draw, ext_proc.ProcessingRequest, words, depth=5)
            if request is None:
                return
            try:
                for response in exchange.answer(request):
                    assert len(response.SerializeToString()) < 64 << 10
            except CallError:
                break  # the call ends with this status
        exchange.close()

    return feed


TARGETS = (
    Target("picker_frames", _frames, ("aegaeon_picker",)),
    Target("picker_messages", _messages, ("aegaeon_picker",)),
)
