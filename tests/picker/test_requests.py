"""Malformed and extreme messages of Envoy's protocol."""

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_picker.exchange import SUBSET, Exchange
from aegaeon_picker.fleet import Endpoint, Fleet
from aegaeon_picker.requests import MAX_FIELDS_BYTES, read_request
from aegaeon_picker.transport.errors import CallError
from aegaeon_proto.envoy.ext_proc_pb2 import HttpBody, ProcessingRequest


def answer(data: bytes) -> int:
    """Number of answers."""
    fleet = Fleet()
    fleet.update([Endpoint("10.0.0.1", 8000)])
    exchange = Exchange(fleet)
    try:
        return len(list(exchange.answer(read_request(data))))
    finally:
        exchange.close()
        assert not fleet.open("10.0.0.1:8000")


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=60).map(lambda some: some + bytes(33 << 10))))
def test_no_bytes_raise_anything_but_a_call_error(data: bytes) -> None:
    with suppress(CallError):
        answer(data)


def test_a_long_body_is_accepted_and_other_long_messages_are_refused() -> None:
    body = ProcessingRequest(request_body=HttpBody(body=b"x" * 4_000_000, end_of_stream=True))
    assert answer(body.SerializeToString()) > 1
    headers = ProcessingRequest()
    headers.request_headers.headers.headers.add(key="x", raw_value=b"x" * MAX_FIELDS_BYTES)
    with pytest.raises(CallError, match="outside the body"):
        answer(headers.SerializeToString())


def test_four_megabytes_of_empty_headers_cost_nothing() -> None:
    inner = b"\x0a\x00" * (2 << 20)  # of 4 MiB
    began = time.thread_time()
    with pytest.raises(CallError, match="outside the body"):
        answer(b"\x12\x80\x80\x80\x02" + inner)
    with pytest.raises(CallError, match="fields"):
        answer(b"\x18\x00" * (2 << 20))
    assert time.thread_time() - began < 0.1


@pytest.mark.parametrize("hint", [1.0, True, {"a": 1}, ["10.0.0.1:8000"] * 5000])
def test_an_invalid_subset_ends_its_call(hint: object) -> None:
    request = ProcessingRequest()
    request.request_headers.SetInParent()
    request.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({SUBSET: hint})
    with pytest.raises(CallError):
        answer(request.SerializeToString())


def test_the_endpoint_that_served_is_counted_only_when_it_may_be_one() -> None:
    fleet = Fleet()
    request = ProcessingRequest()
    request.response_headers.SetInParent()
    request.metadata_context.filter_metadata["envoy.lb"].update({"x-gateway-destination-endpoint-served": "x" * 1000})
    exchange = Exchange(fleet)
    list(exchange.answer(request))
    assert not fleet.open("x" * 1000)
