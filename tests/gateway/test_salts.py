"""Who shares KV cache with whom, as the salts of requests say."""

from __future__ import annotations

from pathlib import Path

import pytest

from aegaeon_gateway.config import PrefixScope
from aegaeon_gateway.errors import ConfigError
from aegaeon_gateway.tenancy.model import ANYBODY, Tenant
from aegaeon_gateway.tenancy.salts import PrefixSalts

ALICE, BOB = Tenant("alice", frozenset()), Tenant("bob", frozenset())


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef")
    return file


def salts(secret: Path, scope: PrefixScope = "tenant", clock: list[float] | None = None) -> PrefixSalts:
    now = clock or [0.0]
    return PrefixSalts(scope, secret, lambda: now[0])


def test_every_tenant_has_its_own_and_clients_without_a_key_have_one_together(secret: Path) -> None:
    made = salts(secret)
    found = [made.of(who, "", "") for who in (ALICE, BOB, ANYBODY, Tenant("keyless", frozenset()))]
    assert len(set(found)) == 4
    assert all(len(salt) == 16 for salt in found)
    assert found == [salts(secret).of(who, "", "") for who in (ALICE, BOB, ANYBODY, Tenant("keyless", frozenset()))]


def test_a_group_of_modelpools_shares_and_no_tenant_can_be_named_like_it(secret: Path) -> None:
    made = salts(secret)
    assert made.of(ALICE, "team/group", "") == made.of(BOB, "team/group", "") != made.of(ALICE, "other/group", "")
    assert made.of(Tenant("team/group", frozenset()), "", "") != made.of(ALICE, "team/group", "")


@pytest.mark.parametrize("scope", ["tenant", "pool"])
def test_a_cache_salt_of_the_client_divides_what_it_shares(secret: Path, scope: PrefixScope) -> None:
    made = salts(secret, scope)
    assert made.of(ALICE, "", "x") == made.of(ALICE, "", "x")
    assert len({made.of(ALICE, "", ""), made.of(ALICE, "", "x"), made.of(ALICE, "", "y")}) == 3
    assert (made.of(ALICE, "", "x") == made.of(BOB, "", "x")) == (scope == "pool")


def test_in_a_pool_that_shares_there_is_none(secret: Path) -> None:
    assert salts(secret, "pool").of(ALICE, "", "") == salts(secret, "pool").of(ANYBODY, "group", "") == b""


def test_another_secret_counts_within_a_second_and_one_that_cannot_be_read_does_not(secret: Path) -> None:
    clock = [0.0]
    made = salts(secret, clock=clock)
    before = made.of(ALICE, "", "")
    secret.write_text("another secret of 16")
    assert made.of(ALICE, "", "") == before
    clock[0] = 1.0
    after = made.of(ALICE, "", "")
    assert after != before
    secret.write_text("short")
    clock[0] = 2.0
    assert made.of(ALICE, "", "") == after


def test_a_secret_that_is_missing_or_short_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        salts(tmp_path / "none")
    (tmp_path / "short").write_text("x")
    with pytest.raises(ConfigError, match="holds 1 bytes"):
        salts(tmp_path / "short")


def test_without_a_file_every_process_is_alone() -> None:
    assert PrefixSalts("tenant", None).of(ALICE, "", "") != PrefixSalts("tenant", None).of(ALICE, "", "")
