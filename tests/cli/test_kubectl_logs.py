"""Which lines are about a model, and in which order those of several pods are."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from aegaeon_cli.kubectl.log_lines import Line, Window, about, merged, names, parse, touches


def log(pod: str, *lines: str) -> list[Line]:
    """A second apart, from midnight on."""
    return [parse(pod, f"2026-01-01T00:00:{second:02}Z {text}") for second, text in enumerate(lines)]


def texts(lines: Iterable[Line]) -> list[str]:
    return [line.text for line in lines]


@pytest.mark.parametrize("text", ["model llama: fetched", "llama", '{"model":"llama"}', "(llama, qwen)", "llama."])
def test_a_name_is_found_as_a_whole(text: str) -> None:
    assert names("llama")(text)


@pytest.mark.parametrize(
    "text", ["llama2", "tiny-llama", "llama-large", "/srv/llama/config.json", "org/llama", "llama.gguf"]
)
def test_a_part_of_a_longer_name_or_of_a_path_is_not_the_model(text: str) -> None:
    assert not names("llama")(text)


def test_a_name_with_signs_of_patterns_is_taken_literally() -> None:
    assert names("org/a.b")("model org/a.b: fetched")
    assert not names("org/a.b")("model org/aXb: fetched")


def test_a_change_of_the_leader_touches_every_model() -> None:
    leads = "2026-01-01 00:00:00,000 INFO aegaeon_kube.lease: leading in term 3"
    other = "2026-01-01 00:00:01,000 INFO aegaeon_scheduler: the core is compiled"
    assert texts(about(log("scheduler", leads, other), touches("llama"))) == [leads]
    assert texts(about(log("scheduler", leads, other), names("llama"))) == []


def test_lines_without_a_time_belong_to_the_entry_before_them() -> None:
    lines = log(
        "pod",
        "2026-01-01 00:00:00,000 INFO x: begins",
        "2026-01-01 00:00:01,000 ERROR x: a step failed",
        "Traceback (most recent call last):",
        "ValueError: llama",
        "2026-01-01 00:00:02,000 ERROR x: llama failed",
        "Traceback (most recent call last):",
        '{"model": "qwen"}',
    )

    found = texts(about(lines, names("llama")))

    assert found == texts(lines[1:6])


def test_an_entry_is_known_before_the_next_one_begins() -> None:
    lines = iter(log("pod", "2026-01-01 00:00:00,000 INFO x: llama"))

    assert next(about(lines, names("llama"))).text.endswith("llama")


def test_with_all_lines_everything_after_the_first_that_names_it_is_there() -> None:
    lines = log("pod", *(f"2026-01-01 00:00:00,000 INFO x: {word}" for word in ("a", "llama", "b", "c")))

    assert texts(about(lines, names("llama"), then_all=True)) == texts(lines[1:])


def test_logs_are_merged_by_time_to_the_nanosecond_and_across_time_zones() -> None:
    first = [parse("a", "2026-01-01T00:00:00.000000002Z 2"), parse("a", "2026-01-01T00:00:01Z 4")]
    second = [parse("b", "2026-01-01T01:00:00.000000001+01:00 1"), parse("b", "2025-12-31T23:00:00.5-01:00 3")]

    assert texts(merged([first, second])) == ["1", "2", "3", "4"]


def test_a_line_without_a_time_is_no_line_of_a_kubelet() -> None:
    with pytest.raises(ValueError, match="isoformat"):
        parse("pod", "unable to retrieve container logs")


def test_a_line_that_arrives_late_comes_before_a_later_one_that_arrived_before_it() -> None:
    window = Window(delay_s=0.5)
    early, late = log("a", "early", "late")
    window.put(late, now=10.0)
    window.put(early, now=10.3)

    assert not list(window.due(now=10.4))
    assert texts(window.due(now=10.8)) == ["early", "late"]
