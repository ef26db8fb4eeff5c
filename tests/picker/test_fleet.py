"""Who is next."""

from aegaeon_picker.fleet import Endpoint, Fleet

A, B, C = (Endpoint(f"10.0.0.{i}", 8000) for i in (1, 2, 3))


def fleet(*endpoints: Endpoint) -> Fleet:
    made = Fleet()
    made.update(endpoints)
    return made


def test_the_first_choice_has_the_fewest_open_requests() -> None:
    three = fleet(A, B, C)
    for endpoint in (A, A, B):
        three.begin(str(endpoint))
    assert three.pick() == [str(C), str(B), str(A)]


def test_equal_endpoints_are_picked_round_robin() -> None:
    three = fleet(A, B, C)
    assert {three.pick()[0] for _ in range(3)} == {str(A), str(B), str(C)}


def test_only_the_subset_is_picked_from_by_address_with_or_without_port() -> None:
    three = fleet(A, B, C)
    assert set(three.pick([str(A), str(B)])) == {str(A), str(B)}
    assert three.pick(["10.0.0.3"]) == [str(C)]
    assert three.pick(["10.0.0.9:8000"]) == []
    assert three.pick([]) == []


def test_nothing_is_picked_before_the_first_list() -> None:
    assert Fleet().pick() == []
    assert not Fleet().known


def test_an_ended_request_no_longer_counts() -> None:
    two = fleet(A, B)
    two.begin(str(A))
    two.end(str(A))
    assert two.open(str(A)) == 0


def test_requests_at_an_endpoint_that_left_may_still_end() -> None:
    two = fleet(A, B)
    two.begin(str(A))
    assert two.update([B])
    two.end(str(A))
    assert two.pick() == [str(B)]


def test_the_same_list_again_is_no_change() -> None:
    two = fleet(A, B)
    assert not two.update([B, A])


def test_the_first_list_is_a_change_even_when_it_is_empty() -> None:
    made = Fleet()
    assert made.update([])
    assert made.known


def test_an_ipv6_address_is_in_brackets() -> None:
    assert str(Endpoint("fd00::1", 8000)) == "[fd00::1]:8000"
