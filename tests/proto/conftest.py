"""The authority of a pool, certificates of its roles, and a web server with faults."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pool_certificates import mount
from sidecar.web import Server, serving

from aegaeon_operator.pki import Pair, issue, make_authority
from aegaeon_proto.roles import Role

NOW = datetime.now(UTC)


@pytest.fixture(scope="session")
def authority() -> Pair:
    return make_authority("red", NOW)


@pytest.fixture
def folders(tmp_path: Path, authority: Pair) -> dict[Role, Path]:
    """The certificates of every role."""
    return {role: mount(tmp_path / role, authority, issue(authority, role, NOW)) for role in Role}


@pytest.fixture
def web() -> Iterator[Server]:
    with serving() as server:
        yield server
