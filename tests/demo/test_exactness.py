"""The exactness benchmark's own machinery: requests, clients that leave, and the verdict, against a scripted peer."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def exactness(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark as a module; it is run from the repository's root, so the root is on the path for a moment."""
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.exactness")


def _deck(exactness: Any, models: dict[str, Path], seed: int) -> Any:
    return exactness.Deck(models, {model: ["What?", "Why?"] for model in models}, seed)


def test_the_same_seed_draws_the_same_requests(exactness: Any, tiny_models: dict[str, Path]) -> None:
    one, other, third = (_deck(exactness, tiny_models, seed) for seed in (1, 1, 2))
    drawn = [one.draw() for _ in range(50)]
    assert drawn == [other.draw() for _ in range(50)]
    assert drawn != [third.draw() for _ in range(50)]
    assert {request.model for request in drawn} == set(tiny_models)
    assert any(request.max_tokens == 1 for request in drawn)
    assert any(request.leave_after for request in drawn)


async def test_a_client_that_disconnects_keeps_the_tokens_it_received(
    exactness: Any, tiny_models: dict[str, Path], peer: Any
) -> None:
    request = next(r for r in iter(_deck(exactness, tiny_models, 3).draw, None) if r.leave_after == 4)
    many: list[tuple[str, list[int], str | None]] = [("x", [7], None) for _ in range(100)]
    async with peer(lambda body: many) as url, exactness.Client(url) as client:
        output = await client.ask(request)
    assert 4 <= len(output.tokens) < 100
    assert not output.error
    assert output.finish_reason is None


async def test_refusals_and_broken_streams_are_failures(
    exactness: Any, tiny_models: dict[str, Path], peer: Any
) -> None:
    request = _deck(exactness, tiny_models, 3).draw_seeded()
    async with peer(lambda body: [("half", [4], None)]) as url, exactness.Client(url) as client:
        output = await client.ask(request)
    assert "finish reason" in output.error


def test_an_output_that_transformers_would_not_give_makes_the_figure_miss(
    exactness: Any, tiny_models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    request = _deck(exactness, tiny_models, 5).draw()
    wrong = exactness.Output(request, tokens=[300, 301, 302], finish_reason="length")
    verdicts = exactness.judge([wrong], tiny_models)
    rows = {row.figure: row for row in exactness.rows(10, 12, [wrong], verdicts)}
    assert not rows["outputs not identical to transformers"].holds
    assert rows["switches of the engines that decode"].holds
    assert "different" in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["slack", "paper"])
def test_the_manifests_of_the_benchmark_are_valid(exactness: Any, tmp_path: Path, policy: str) -> None:
    from aegaeon_operator.spec import load_manifests

    exactness.write_manifests(tmp_path, policy, exactness.SMALL | {"deviceBytes": "8Mi"}, "20ms")
    spec = load_manifests(tmp_path, tmp_path).pools[0].gpu_pool.spec
    assert spec.scheduling.policy == policy
    replicas = sum(role.replicas for role in (spec.engines, spec.prefill, spec.decode) if role is not None)
    assert replicas == {"slack": 2, "paper": 3}[policy]
