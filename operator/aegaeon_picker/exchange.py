"""The ext_proc exchange with Envoy for an HTTP request.

Bodies stream in both directions without buffering, as FULL_DUPLEX_STREAMED requires, and Envoy forwards the request as
soon as its headers are answered. Sources: envoy/service/ext_proc/v3 and the endpoint picker protocol of the Gateway API
Inference Extension.
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
# Headers of GIE's conformance suite for gateways; ignored without --conformance.
TEST_SELECTION = "test-epp-endpoint-selection"
TEST_SERVED = "x-conformance-test-served-endpoint"

MAX_PIECE = 62_000  # bytes of body in one message: Envoy's own limit is 64 KiB with its frame
_MAX_SUBSET = 4096  # endpoints
_MAX_ENDPOINT = 64  # characters of "[ip]:port"

_OVERWRITE = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


class Exchange:
    """The state of an exchange. `close` must be called at its end in any case."""

    def __init__(self, fleet: Fleet, conformance: bool = False) -> None:
        self._fleet = fleet
        self._conformance = conformance
        self._counted = ""  # endpoint under which the request is counted
        self.refused = False

    def answer(self, request: Request) -> Iterator[Response]:
        """Yield the responses to a message of Envoy. Raises CallError for an invalid message."""
        match request.WhichOneof("request"):
            case "request_headers":
                yield self._route(request)
            case "request_body":
                for piece in _pieces(request.request_body):
                    yield Response(request_body=piece)
            case "request_trailers":
                yield Response(request_trailers=ext_proc.TrailersResponse())
            case "response_headers":
                yield self._report_served(request)
            case "response_body":
                for piece in _pieces(request.response_body):
                    yield Response(response_body=piece)
            case "response_trailers":
                yield Response(response_trailers=ext_proc.TrailersResponse())

    def close(self) -> None:
        """End the request, answered or not."""
        self._count_at("")

    def _route(self, request: Request) -> Response:
        subset = self._subset(request)
        endpoints = self._fleet.pick(subset)
        if not endpoints:
            self.refused = True
            return _unavailable("no endpoint of the subset is ready" if subset is not None else "no endpoint is ready")
        self._count_at(endpoints[0])
        value = ",".join(endpoints)
        common = ext_proc.CommonResponse(
            clear_route_cache=True,
            header_mutation=ext_proc.HeaderMutation(set_headers=[_header(DESTINATION, value)]),
        )
        metadata = Struct()
        metadata.update({"envoy.lb": {DESTINATION: value}})
        return Response(request_headers=ext_proc.HeadersResponse(response=common), dynamic_metadata=metadata)

    def _subset(self, request: Request) -> list[str] | None:
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
        return [value.string_value for value in hint.list_value.values]

    def _report_served(self, request: Request) -> Response:
        reported = _metadata(request, "envoy.lb", SERVED)
        served = reported.string_value if reported is not None else ""
        if 0 < len(served) <= _MAX_ENDPOINT:
            self._count_at(served)
        common = ext_proc.CommonResponse()
        if self._conformance:  # the suite checks the gateway's report, so the picked endpoint does not count
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
    return [entry.strip() for entry in value.split(",") if entry.strip()]


def _metadata(request: Request, namespace: str, key: str) -> Value | None:
    """Return a value of the metadata that Envoy forwards; None if it is absent, null or empty."""
    filters = request.metadata_context.filter_metadata
    if namespace not in filters or key not in filters[namespace].fields:
        return None
    value = filters[namespace].fields[key]
    return value if value.WhichOneof("kind") not in (None, "null_value") else None


def _pieces(body: ext_proc.HttpBody) -> Iterator[ext_proc.BodyResponse]:
    """Yield the unchanged body in pieces that Envoy accepts; the last one has the end-of-stream flag."""
    cuts: Sequence[int] = range(0, len(body.body), MAX_PIECE) or (0,)
    for begin in cuts:
        piece = body.body[begin : begin + MAX_PIECE]
        last = body.end_of_stream and begin == cuts[-1]
        mutation = ext_proc.BodyMutation(
            streamed_response=ext_proc.StreamedBodyResponse(body=piece, end_of_stream=last)
        )
        yield ext_proc.BodyResponse(response=ext_proc.CommonResponse(body_mutation=mutation))


def _unavailable(why: str) -> Response:
    """Return a 503 in the format of OpenAI's API, since clients receive it."""
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
