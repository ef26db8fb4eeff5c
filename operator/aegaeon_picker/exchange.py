"""One HTTP request's conversation with Envoy: what comes in, what goes back.

Bodies stream through in both directions, piece by piece, as FULL_DUPLEX_STREAMED asks for: nothing is collected, and
the request goes on its way as soon as its headers were answered. Sources: envoy/service/ext_proc/v3 and the endpoint
picker protocol of the Gateway API Inference Extension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google.protobuf.struct_pb2 import Struct, Value

from aegaeon_picker.fleet import Fleet
from aegaeon_picker.transport.errors import CallError, Status
from aegaeon_proto.envoy import ext_proc_pb2 as ext_proc
from aegaeon_proto.envoy.ext_proc_pb2 import HeaderValue, HeaderValueOption, HttpStatus
from aegaeon_proto.envoy.ext_proc_pb2 import ProcessingRequest as Request
from aegaeon_proto.envoy.ext_proc_pb2 import ProcessingResponse as Response

DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
# Names of the suite that tests gateways (GIE's conformance); obeyed only where the picker was started for it.
TEST_SELECTION = "test-epp-endpoint-selection"
TEST_SERVED = "x-conformance-test-served-endpoint"

MAX_PIECE = 62_000  # bytes of body in one message: Envoy's own limit is 64 KiB with its frame
_MAX_SUBSET = 4096  # endpoints
_MAX_ENDPOINT = 64  # characters of "[ip]:port"

_OVERWRITE = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


class Exchange:
    """The state of one conversation. `close` must be called at its end, however it ended."""

    def __init__(self, fleet: Fleet, conformance: bool = False) -> None:
        self._fleet = fleet
        self._conformance = conformance
        self._counted = ""  # the endpoint that this request is counted at
        self.refused = False

    def answer(self, request: Request) -> Iterator[Response]:
        """The answer to Envoy. Raises CallError for what Envoy would not ask."""
        match request.WhichOneof("request"):
            case "request_headers":
                yield self._route(request)
            case "request_body":
                for piece in _pieces(request.request_body):
                    yield Response(request_body=piece)
            case "request_trailers":
                yield Response(request_trailers=ext_proc.TrailersResponse())
            case "response_headers":
                yield self._arrived(request)
            case "response_body":
                for piece in _pieces(request.response_body):
                    yield Response(response_body=piece)
            case "response_trailers":
                yield Response(response_trailers=ext_proc.TrailersResponse())

    def close(self) -> None:
        """The request is over, answered or not."""
        self._count_at("")

    def _route(self, request: Request) -> Response:
        wanted = self._wanted(request)
        endpoints = self._fleet.pick(wanted)
        if not endpoints:
            self.refused = True
            return _unavailable("no endpoint of the subset is ready" if wanted is not None else "no endpoint is ready")
        self._count_at(endpoints[0])
        value = ",".join(endpoints)
        common = ext_proc.CommonResponse(
            clear_route_cache=True,
            header_mutation=ext_proc.HeaderMutation(set_headers=[_header(DESTINATION, value)]),
        )
        metadata = Struct()
        metadata.update({"envoy.lb": {DESTINATION: value}})
        return Response(request_headers=ext_proc.HeadersResponse(response=common), dynamic_metadata=metadata)

    def _wanted(self, request: Request) -> list[str] | None:
        if self._conformance:
            for header in request.request_headers.headers.headers:
                if header.key == TEST_SELECTION:
                    return _split((header.raw_value or header.value.encode()).decode("utf-8", "replace"))
        hint = _metadata(request, "envoy.lb.subset_hint", SUBSET)
        if hint is None:
            return None
        if hint.HasField("string_value"):
            return _split(hint.string_value)
        if not hint.HasField("list_value") or len(hint.list_value.values) > _MAX_SUBSET:
            raise CallError(Status.INVALID_ARGUMENT, f"{SUBSET} is no list of at most {_MAX_SUBSET} endpoints")
        return [each.string_value for each in hint.list_value.values]

    def _arrived(self, request: Request) -> Response:
        reported = _metadata(request, "envoy.lb", SERVED)
        served = reported.string_value if reported is not None else ""
        if 0 < len(served) <= _MAX_ENDPOINT:
            self._count_at(served)
        common = ext_proc.CommonResponse()
        if self._conformance:  # the suite asks whether the gateway says it, so what was picked is no answer
            shown = served or f"fail: no metadata envoy.lb {SERVED}"
            common.header_mutation.set_headers.append(_header(TEST_SERVED, shown))
        return Response(response_headers=ext_proc.HeadersResponse(response=common))

    def _count_at(self, endpoint: str) -> None:
        if self._counted == endpoint:
            return
        if self._counted:
            self._fleet.end(self._counted)
        if endpoint:
            self._fleet.begin(endpoint)
        self._counted = endpoint


def _header(key: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(header=HeaderValue(key=key, raw_value=value.encode()), append_action=_OVERWRITE)


def _split(value: str) -> list[str]:
    return [each.strip() for each in value.split(",") if each.strip()]


def _metadata(request: Request, namespace: str, key: str) -> Value | None:
    """A value of the metadata that Envoy forwards; None when it is absent, null or of no kind."""
    filters = request.metadata_context.filter_metadata
    if namespace not in filters or key not in filters[namespace].fields:
        return None
    value = filters[namespace].fields[key]
    return value if value.WhichOneof("kind") not in (None, "null_value") else None


def _pieces(body: ext_proc.HttpBody) -> Iterator[ext_proc.BodyResponse]:
    """The body as it came, in pieces that Envoy takes; the last one says when it is the end."""
    cuts: Sequence[int] = range(0, len(body.body), MAX_PIECE) or (0,)
    for begin in cuts:
        piece = body.body[begin : begin + MAX_PIECE]
        last = body.end_of_stream and begin == cuts[-1]
        mutation = ext_proc.BodyMutation(
            streamed_response=ext_proc.StreamedBodyResponse(body=piece, end_of_stream=last)
        )
        yield ext_proc.BodyResponse(response=ext_proc.CommonResponse(body_mutation=mutation))


def _unavailable(why: str) -> Response:
    """As OpenAI's API words it, since a client may read it."""
    text = f'{{"error":{{"message":"{why}; try again","type":"server_error","param":null,"code":"unavailable"}}}}'
    headers = [_header("content-type", "application/json"), _header("retry-after", "1")]
    return Response(
        immediate_response=ext_proc.ImmediateResponse(
            status=HttpStatus(code=503),
            headers=ext_proc.HeaderMutation(set_headers=headers),
            body=text.encode(),
            details="aegaeon_picker_no_endpoint",
        )
    )
