"""One connection without its I/O: what ends a stream alone, what ends the connection, and what neither does."""

from dataclasses import dataclass, field

import pytest
from h2.errors import ErrorCodes
from hpack import Decoder
from picker import hostile
from picker.hostile import DATA, END_HEADERS, END_STREAM, HELLO, Headers, Output, frame, grpc_message, open_stream

from aegaeon_picker.fleet import Endpoint, Fleet
from aegaeon_picker.metrics import Metrics
from aegaeon_picker.server import Picker
from aegaeon_picker.transport.budget import Budget
from aegaeon_picker.transport.errors import PeerError, Status
from aegaeon_picker.transport.limits import Limits, Reason
from aegaeon_picker.transport.rejections import Rejections
from aegaeon_picker.transport.session import Session

GOOD = grpc_message(hostile.body_request(b"tokens"))
FOREVER = float("inf")


@dataclass
class Rig:
    """A session of the picker on a clock that the test moves, and all that it said."""

    limits: Limits = field(default_factory=Limits)
    now: float = 0.0
    tick_s: float = 0.0  # that each look at the clock takes
    rejected: list[tuple[str, Reason]] = field(default_factory=list)

    def __post_init__(self) -> None:
        fleet = Fleet()
        fleet.update([Endpoint("10.0.0.1", 8000)])
        self.fleet = fleet
        self.budget = Budget(self.limits)
        self.rejections = Rejections(lambda scope, reason: self.rejected.append((scope, reason)), self.clock)
        self.methods = Picker(fleet, Metrics(fleet), conformance=False).methods
        self.output = Output()
        self.session = self.connect()

    def connect(self) -> Session:
        return Session(self.methods, self.budget, self.rejections, "peer", self.clock, lambda: None)

    def clock(self) -> float:
        self.now += self.tick_s
        return self.now

    def send(self, data: bytes) -> None:
        """In one read."""
        self.session.add(data)
        while self.session.work(FOREVER):
            pass
        self.output.data += self.session.to_send()

    def ends(self, data: bytes) -> PeerError:
        """The connection, with that error."""
        with pytest.raises(PeerError) as raised:
            self.send(data)
        self.session.end(raised.value)
        self.output.data += self.session.to_send()
        assert self.output.goaways() == [raised.value.code]
        return raised.value

    def answers(self, stream: int) -> int:
        """Bytes of answers."""
        return sum(
            len(payload) for kind, _, number, payload in self.output.frames() if (kind, number) == (DATA, stream)
        )

    def status(self, stream: int) -> int | None:
        """Of the call on it, once it has one."""
        decoder, found = Decoder(), None
        for kind, _, number, payload in self.output.frames():
            if kind == hostile.HEADERS:
                fields = dict(decoder.decode(payload))
                found = int(fields["grpc-status"]) if number == stream and "grpc-status" in fields else found
        return found

    def goes_on(self, stream: int = 99) -> None:
        """Another call on the same connection is answered."""
        self.send(open_stream(stream) + frame(DATA, stream, GOOD, END_STREAM))
        assert self.answers(stream) > 0
        assert self.status(stream) == Status.OK
        assert not self.output.goaways()
        self.budget.check()


def with_fields(*more: tuple[str, str], without: str = "") -> bytes:
    fields: Headers = [each for each in hostile.request() if each[0] != without]
    return open_stream(1, hostile.block([*fields, *more]))


def test_a_stream_opened_and_reset_in_one_read_ends_alone() -> None:
    rig = Rig()
    rig.send(HELLO + open_stream(1) + hostile.reset(1) + open_stream(3) + frame(DATA, 3, GOOD) + hostile.reset(3))
    rig.goes_on()


@pytest.mark.parametrize(
    "malformed",
    [
        with_fields(("Upper", "case")),
        with_fields(without=":path"),
        with_fields(without=":method"),
        with_fields(without="content-type"),
        with_fields((":scheme", "https")),
        with_fields((":late", "x")),
        with_fields(("connection", "close")),
        with_fields(("name", "two\r\nlines")),
        with_fields(("", "no name")),
    ],
)
def test_invalid_header_fields_end_their_stream_alone(malformed: bytes) -> None:
    rig = Rig()
    rig.send(HELLO + malformed)
    assert rig.output.resets() == {1: ErrorCodes.PROTOCOL_ERROR}
    assert rig.rejected == [("stream", Reason.MALFORMED)]
    rig.goes_on()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (frame(DATA, 1, grpc_message(b"\xff" * 9)), Status.INTERNAL),
        (frame(DATA, 1, grpc_message(b"x", compressed=1)), Status.UNIMPLEMENTED),
        (frame(DATA, 1, grpc_message(b"x", size=1 << 30)), Status.RESOURCE_EXHAUSTED),
        (frame(DATA, 1, GOOD[:-1], END_STREAM), Status.INTERNAL),
        (frame(DATA, 1, b"", END_STREAM), Status.OK),
    ],
)
def test_a_rejected_message_ends_its_call_alone(sent: bytes, status: Status) -> None:
    rig = Rig()
    rig.send(HELLO + open_stream(1) + sent)
    assert rig.status(1) == status
    rig.goes_on()


@pytest.mark.parametrize("fields", [(("big", "x" * 9000),), tuple((f"n{number}", "x") for number in range(100))])
def test_header_fields_that_are_too_many_or_too_large_end_their_call_alone(fields: tuple[tuple[str, str], ...]) -> None:
    rig = Rig()
    rig.send(HELLO + with_fields(*fields))
    assert rig.status(1) == Status.RESOURCE_EXHAUSTED
    rig.goes_on()


@pytest.mark.parametrize(
    ("late", "code"),
    [
        (frame(DATA, 1, b"", END_STREAM) + frame(DATA, 1, GOOD), ErrorCodes.STREAM_CLOSED),
        (hostile.window(1, 2**31 - 1), ErrorCodes.FLOW_CONTROL_ERROR),
    ],
)
def test_a_frame_that_its_stream_does_not_allow_ends_the_stream_alone(late: bytes, code: ErrorCodes) -> None:
    rig = Rig()
    rig.send(HELLO + open_stream(1) + late)
    assert rig.output.resets()[1] in {code, ErrorCodes.NO_ERROR}
    rig.goes_on()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", Reason.PREFACE),
        (HELLO + (1 << 20).to_bytes(3) + bytes(6), Reason.PROTOCOL),
        (HELLO + open_stream(1) + open_stream(1), Reason.PROTOCOL),  # trailers that do not end the stream
        (HELLO + open_stream(3) + open_stream(1), Reason.PROTOCOL),
        (HELLO + open_stream(2), Reason.PROTOCOL),
        (HELLO + frame(hostile.HEADERS, 1) + frame(DATA, 1), Reason.PROTOCOL),
        (HELLO + frame(hostile.HEADERS, 1, b"\xff" * 9, END_HEADERS), Reason.PROTOCOL),
        (HELLO + frame(hostile.SETTINGS, 0, b"x"), Reason.PROTOCOL),
        (HELLO + hostile.window(0, 2**31 - 1) * 2, Reason.PROTOCOL),
    ],
)
def test_a_connection_error_ends_it_with_a_goaway(sent: bytes, reason: Reason) -> None:
    assert Rig().ends(sent).reason == reason


@pytest.mark.parametrize(
    "name",
    [
        "ping flood",
        "settings flood",
        "unknown settings",
        "rapid reset",
        "empty data",
        "one byte a frame",
        "priority flood",
        "window updates",
        "continuation flood",
        "made to reset",
        "empty calls",
        "malformed messages",
        "frames of no known type",
    ],
)
def test_a_flood_ends_its_connection_with_enhance_your_calm(name: str) -> None:
    rig, attack = Rig(), hostile.ATTACKS[name]

    def flood() -> None:
        rig.send(attack.opening)
        for _, chunk in zip(range(50), attack.chunks(), strict=False):
            rig.send(chunk)

    with pytest.raises(PeerError) as raised:
        flood()
    assert raised.value.code == ErrorCodes.ENHANCE_YOUR_CALM


def test_a_client_below_the_rate_limits_is_not_affected() -> None:
    rig = Rig()
    rig.send(HELLO)
    for number in range(2000):
        rig.now += 0.1
        stream = 2 * number + 101
        rig.send(frame(hostile.PING, payload=b"8 bytes.") + hostile.window(0, 1000))
        rig.send(open_stream(stream) + hostile.reset(stream))
    rig.goes_on(9999)


def test_one_stream_too_many_is_refused_and_the_others_go_on() -> None:
    rig = Rig(Limits(streams_per_connection=2))
    rig.send(HELLO + open_stream(1) + open_stream(3) + open_stream(5))
    assert rig.output.resets() == {5: ErrorCodes.REFUSED_STREAM}
    rig.send(hostile.reset(3))
    rig.goes_on()


def test_streams_of_all_connections_are_bounded() -> None:
    rig = Rig(Limits(streams=1))
    rig.send(HELLO + open_stream(1))
    first, rig.session, rig.output = rig.session, rig.connect(), Output()
    rig.send(HELLO + open_stream(1))
    assert rig.output.resets() == {1: ErrorCodes.REFUSED_STREAM}
    first.close()
    rig.goes_on()


def test_unread_responses_pause_further_ones() -> None:
    rig = Rig()
    asked = grpc_message(hostile.body_request(b"x" * 30_000))
    rig.send(hostile.PREFACE + hostile.settings(initial_window_size=0) + hostile.window(0, 1 << 30) + open_stream(1))
    rig.send(b"".join(frame(DATA, 1, asked[at : at + 16_000]) for at in range(0, len(asked), 16_000)) * 2)
    assert rig.answers(1) == 0
    assert 60_000 < rig.budget.bytes < 1 << 17
    assert not [each for kind, _, each, _ in rig.output.frames() if kind == hostile.WINDOW_UPDATE and each == 1]
    rig.send(hostile.window(1, 1 << 20))
    assert rig.answers(1) > 60_000
    assert rig.budget.bytes == 0


def test_the_stream_with_the_largest_buffer_ends_when_the_connection_buffers_too_much() -> None:
    rig = Rig(Limits(connection_bytes=100_000))
    started = grpc_message(b"", size=1 << 20)
    rig.send(HELLO + b"".join(open_stream(each) + frame(DATA, each, started + b"x" * 10_000) for each in (1, 3)))
    rig.send(frame(DATA, 1, b"x" * 16_000) * 3)
    rig.send(frame(DATA, 3, b"x" * 16_000) * 2)
    assert rig.output.resets() == {1: ErrorCodes.ENHANCE_YOUR_CALM}
    assert rig.rejected == [("stream", Reason.BUFFERED)]
    rig.goes_on()


def test_the_connection_with_the_largest_buffer_ends_when_all_buffer_too_much() -> None:
    rig = Rig(Limits(buffered_bytes=100_000))
    started = grpc_message(b"", size=1 << 20)
    rig.send(HELLO + open_stream(1) + frame(DATA, 1, started + b"x" * 16_000) + frame(DATA, 1, b"x" * 16_000) * 3)
    greedy, output = rig.session, rig.output
    rig.session, rig.output = rig.connect(), Output()
    rig.send(HELLO + open_stream(1) + frame(DATA, 1, started + b"x" * 16_000) + frame(DATA, 1, b"x" * 16_000) * 2)
    output.data += greedy.to_send()
    assert output.resets() == {1: ErrorCodes.ENHANCE_YOUR_CALM}
    assert not rig.output.resets()
    rig.goes_on()


@pytest.mark.parametrize(
    ("sent", "after_s", "reason"),
    [
        (open_stream(1), 31, Reason.INCOMPLETE),
        (open_stream(1) + frame(DATA, 1, GOOD[:-1]), 31, Reason.INCOMPLETE),
        (open_stream(1) + frame(DATA, 1, GOOD), 901, Reason.IDLE),
    ],
)
def test_a_stream_that_takes_too_long_ends_alone(sent: bytes, after_s: float, reason: Reason) -> None:
    rig = Rig()
    rig.send(HELLO + sent)
    rig.now += after_s
    rig.session.check()
    rig.send(b"")
    assert rig.output.resets() == {1: ErrorCodes.CANCEL}
    assert rig.rejected == [("stream", reason)]
    rig.goes_on()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", Reason.PREFACE),
        (hostile.PREFACE, Reason.PREFACE),
        (HELLO + frame(hostile.HEADERS, 1, b"\x82"), Reason.HEADERS),
    ],
)
def test_a_connection_that_takes_too_long_ends(sent: bytes, reason: Reason) -> None:
    rig = Rig()
    rig.send(sent)
    rig.session.check()
    rig.now += 11
    with pytest.raises(PeerError) as raised:
        rig.session.check()
    assert raised.value.reason == reason


def test_work_yields_when_its_time_slice_is_over_and_resumes() -> None:
    rig = Rig(tick_s=0.0001)
    rig.session.add(HELLO + frame(hostile.PING, payload=b"8 bytes.") * 100)
    turns = 1
    while rig.session.work(rig.now + 0.001):
        turns += 1
    assert turns >= 10
    rig.output.data += rig.session.to_send()
    assert sum(kind == hostile.PING for kind, _, _, _ in rig.output.frames()) == 100


def test_streams_with_many_messages_are_answered_in_turn() -> None:
    rig = Rig(tick_s=0.001)
    rig.send(HELLO + open_stream(1) + open_stream(3))
    rig.session.add(frame(DATA, 1, GOOD * 300) + frame(DATA, 3, GOOD))
    rig.session.work(rig.now + 0.01)
    rig.output.data += rig.session.to_send()
    assert 0 < rig.answers(1) < 300 * len(GOOD)
