"""Nothing submitted is lost where prefill and decode have engines of their own, whatever process is killed."""

from __future__ import annotations

import pytest
from stack.test_faults import (
    alone,
    stack,
    test_every_client_gets_its_complete_output_when_a_process_is_killed,
    test_requests_of_a_killed_client_are_freed,
)

__all__ = [
    "alone",
    "stack",
    "test_every_client_gets_its_complete_output_when_a_process_is_killed",
    "test_requests_of_a_killed_client_are_freed",
]


@pytest.fixture(scope="module")
def policy() -> str:
    return "paper"
