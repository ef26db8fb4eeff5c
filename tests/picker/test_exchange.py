"""The responses to Envoy, message by message."""

import json

import pytest
from google.protobuf.struct_pb2 import NULL_VALUE, Value
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_picker.exchange import DESTINATION, MAX_PIECE, SERVED, SUBSET, TEST_SELECTION, TEST_SERVED, Exchange
from aegaeon_picker.fleet import Endpoint, Fleet
from aegaeon_proto.envoy import ext_proc_pb2 as ext_proc
from aegaeon_proto.envoy.ext_proc_pb2 import HeaderValue

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


def fleet_of_two() -> Fleet:
    fleet = Fleet()
    fleet.update([Endpoint("10.0.0.1", 8000), Endpoint("10.0.0.2", 8000)])
    return fleet


def headers(**named: str) -> ext_proc.ProcessingRequest:
    request = ext_proc.ProcessingRequest()
    request.request_headers.headers.headers.extend(
        HeaderValue(key=key.replace("_", "-"), raw_value=value.encode()) for key, value in named.items()
    )
    return request


def only(exchange: Exchange, request: ext_proc.ProcessingRequest) -> ext_proc.ProcessingResponse:
    (response,) = exchange.answer(request)
    return response


def destination(response: ext_proc.ProcessingResponse) -> list[str]:
    """From the header; the metadata must say the same."""
    (header,) = response.request_headers.response.header_mutation.set_headers
    assert header.header.key == DESTINATION
    value = header.header.raw_value.decode()
    assert response.dynamic_metadata["envoy.lb"][DESTINATION] == value
    return value.split(",")


def test_header_and_metadata_name_the_same_endpoints() -> None:
    assert sorted(destination(only(Exchange(fleet_of_two()), headers()))) == [A, B]


def test_a_subset_as_list_or_as_text_restricts_the_choice() -> None:
    for hint in ([A], A, f" {A} , 10.9.9.9:1"):
        request = headers()
        request.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({SUBSET: hint})
        assert destination(only(Exchange(fleet_of_two()), request)) == [A]


def test_a_subset_of_no_kind_or_null_restricts_nothing() -> None:
    for hint in (Value(), Value(null_value=NULL_VALUE)):
        request = headers()
        request.metadata_context.filter_metadata["envoy.lb.subset_hint"].fields[SUBSET].CopyFrom(hint)
        assert destination(only(Exchange(fleet_of_two()), request)) in ([A, B], [B, A])


def test_entries_of_a_subset_that_are_no_text_match_no_endpoint() -> None:
    request = headers()
    hint = request.metadata_context.filter_metadata["envoy.lb.subset_hint"].fields[SUBSET].list_value
    hint.values.extend([Value(), Value(number_value=1), Value(string_value=A)])
    assert destination(only(Exchange(fleet_of_two()), request)) == [A]


def test_an_empty_subset_and_an_empty_pool_are_answered_with_503() -> None:
    request = headers()
    request.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({SUBSET: []})
    for exchange, asked in ((Exchange(fleet_of_two()), request), (Exchange(Fleet()), headers())):
        response = only(exchange, asked).immediate_response
        assert response.status.code == 503
        assert "try again" in json.loads(response.body)["error"]["message"]
        assert exchange.refused


def test_the_request_counts_at_the_endpoint_that_envoy_reports() -> None:
    fleet = fleet_of_two()
    exchange = Exchange(fleet)
    first, second = destination(only(exchange, headers()))
    assert fleet.open(first) == 1
    arrived = ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders())
    arrived.metadata_context.filter_metadata["envoy.lb"].update({SERVED: second})
    only(exchange, arrived)
    assert (fleet.open(first), fleet.open(second)) == (0, 1)
    exchange.close()
    assert fleet.open(second) == 0


def test_test_headers_are_obeyed_for_conformance_alone() -> None:
    asked = headers(**{TEST_SELECTION.replace("-", "_"): "10.0.0.2"})
    assert destination(only(Exchange(fleet_of_two(), conformance=True), asked)) == [B]
    assert len(destination(only(Exchange(fleet_of_two()), asked))) == 2


@pytest.mark.parametrize(("reported", "answered"), [(B, B), (None, f"fail: no metadata envoy.lb {SERVED}")])
def test_the_conformance_suite_gets_the_endpoint_that_served_and_not_the_picked_one(
    reported: str | None, answered: str
) -> None:
    exchange = Exchange(fleet_of_two(), conformance=True)
    only(exchange, headers(**{TEST_SELECTION.replace("-", "_"): A}))
    arrived = ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders())
    if reported is not None:
        arrived.metadata_context.filter_metadata["envoy.lb"].update({SERVED: reported})
    (header,) = only(exchange, arrived).response_headers.response.header_mutation.set_headers
    assert (header.header.key, header.header.raw_value) == (TEST_SERVED, answered.encode())


@given(size=st.integers(0, 3 * MAX_PIECE), end=st.booleans(), answer=st.booleans())
def test_bodies_are_returned_unchanged_in_chunks_that_envoy_accepts(size: int, end: bool, answer: bool) -> None:
    body = ext_proc.HttpBody(body=bytes(i % 251 for i in range(size)), end_of_stream=end)
    request = ext_proc.ProcessingRequest(**{"response_body" if answer else "request_body": body})
    responses = [
        each.response_body if answer else each.request_body for each in Exchange(fleet_of_two()).answer(request)
    ]
    pieces = [each.response.body_mutation.streamed_response for each in responses]
    assert b"".join(piece.body for piece in pieces) == body.body
    assert all(len(piece.body) <= MAX_PIECE for piece in pieces)
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [end]
