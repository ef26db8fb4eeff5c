"""Models whose files cost much: each fails alone and says why, and the others go on."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gateway.conftest import TEMPLATE, TEXT, Pool, model_status

from aegaeon_gateway.errors import TokenizerError
from aegaeon_gateway.workers.bounds import OTHER_FILE_BYTES, check_decoder

Hostile = Callable[..., Path]
ENDS = [(400, "chat_template"), (400, "request_too_costly"), (503, "overloaded")]
"""the last one where the machine has no time for what has the lowest priority"""


@pytest.fixture
def hostile(model_directory: Path, tmp_path: Path) -> Hostile:
    """A model's folder with a template of its own, changes to tokenizer.json, or files that are larger."""

    def make(
        template: str = TEMPLATE, tokenizer: dict[str, Any] | None = None, sizes: dict[str, int] | None = None
    ) -> Path:
        folder = Path(shutil.copytree(model_directory, tmp_path / "hostile", dirs_exist_ok=True))
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
        whole = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps({**whole, **(tokenizer or {})}))
        for name, size in (sizes or {}).items():
            with (folder / name).open("ab") as file:
                file.truncate(size)
        return folder

    return make


async def serve_beside(pool: Pool, folder: Path, length: int = 256) -> None:
    """The peer serves `hostile` beside `tiny`."""
    status = model_status("hostile", folder)
    status.footprint.max_model_len = length
    pool.peer.publish([*pool.peer.models, status])
    await pool.until_models(lambda models: "hostile" in models)


async def assert_the_other_is_served(pool: Pool) -> None:
    status, body, _ = await pool.complete()
    assert (status, body["choices"][0]["text"]) == (200, TEXT)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{{ 1 // 0 }}",
        "{{ range(10**9) | list | length }}",
    ],
)
async def test_a_template_that_never_ends_fails_its_own_request_alone(
    pool: Pool, hostile: Hostile, template: str
) -> None:
    await serve_beside(pool, hostile(template))
    await pool.until_loaded("hostile")
    status, body, _ = await pool.chat(model="hostile")
    assert (status, body["error"]["code"]) in ENDS, body
    await assert_the_other_is_served(pool)


async def test_a_template_that_writes_half_a_surrogate_pair_is_named_by_the_refusal(
    pool: Pool, hostile: Hostile
) -> None:
    await serve_beside(pool, hostile("{{ messages[0].content }}\ud800"))
    await pool.until_loaded("hostile")
    status, body, _ = await pool.chat(model="hostile")
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "chat_template", "messages")
    assert "surrogates not allowed" in body["error"]["message"]


async def test_a_long_rendering_of_a_short_message_is_not_tokenized(pool: Pool, hostile: Hostile) -> None:
    await serve_beside(pool, hostile("{{ 'a' * 10**7 }}"))
    status, body, _ = await pool.chat(model="hostile")
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded"), body


async def test_a_tokenizer_whose_regex_backtracks_fails_its_own_request_alone(pool: Pool, hostile: Hostile) -> None:
    split = {
        "type": "Split",
        "pattern": {"Regex": r"(?:(a|aa|a{1,9})+)+b(?=c)(?<=b)"},
        "behavior": "Isolated",
        "invert": False,
    }
    await serve_beside(pool, hostile(tokenizer={"pre_tokenizer": split}), length=4096)
    status, body, _ = await pool.complete(model="hostile", prompt="a" * 40_000)
    assert status in (200, 400), body
    await assert_the_other_is_served(pool)


async def test_the_event_loop_keeps_running_while_a_template_never_ends(pool: Pool, hostile: Hostile) -> None:
    template = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    await serve_beside(pool, hostile(template))
    asked = asyncio.create_task(pool.chat(model="hostile"))
    answered = 0
    spent = time.thread_time()
    while not asked.done():
        await assert_the_other_is_served(pool)
        await asyncio.wait([asked], timeout=0.05)  # one request after the other would take a processor of its own
        answered += 1
    assert answered > 3
    assert (time.thread_time() - spent) / answered < 1
    status, body, _ = await asked
    assert (status, body["error"]["code"]) in ENDS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sizes": {"tokenizer.json": OTHER_FILE_BYTES + 1}}, "tokenizer.json has"),
        ({"sizes": {"tokenizer_config.json": 17 << 20}}, "tokenizer_config.json has"),
        ({"sizes": {"config.json": 5 << 20}}, "config.json has"),
        ({"sizes": {"generation_config.json": 2 << 20}}, "generation_config.json has"),
        (
            {"tokenizer": {"decoder": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}}},
            "100 times longer",
        ),
        ({"tokenizer": {"decoder": {"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": ""}}}, "regular"),
        ({"tokenizer": {"model": 7}}, "cannot be loaded"),
        (
            {"tokenizer": {"model": {"type": "BPE", "vocab": {"l": 0, "o": 1}, "merges": [["l", "o"]]}}},
            "cannot be loaded: PanicException",
        ),
    ],
)
async def test_files_over_the_bounds_fail_their_model_with_the_reason(
    pool: Pool, hostile: Hostile, change: dict[str, Any], reason: str
) -> None:
    await serve_beside(pool, hostile(**change))
    status, body, _ = await pool.chat(model="hostile")
    assert (status, body["error"]["code"]) == (503, "model_failed"), body
    assert reason in body["error"]["message"]
    async with pool.http.get(f"{pool.url}/v1/models/hostile") as response:
        entry = (await response.json())["aegaeon"]
    assert entry["phase"] == "failed"
    assert reason in entry["reason"]
    await pool.peer.until(lambda: any(text.model == "hostile" and reason in text.reason for text in pool.peer.texts))
    await assert_the_other_is_served(pool)


async def test_a_repaired_model_is_served_again(pool: Pool, hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aegaeon_gateway.models.texts._RETRY_S", 0.0)
    folder = hostile(tokenizer={"model": 7})
    await serve_beside(pool, folder)
    assert (await pool.chat(model="hostile"))[0] == 503
    hostile()
    shutil.copy(pool.directory / "tokenizer.json", folder / "tokenizer.json")
    assert (await pool.chat(model="hostile"))[0] == 200
    await pool.peer.until(lambda: pool.peer.texts[-1].reason == "")


def replacing(times: int, count: int) -> dict[str, Any]:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * times}
    return {"type": "Sequence", "decoders": [step] * count}


@pytest.mark.parametrize(
    "decoder",
    [
        replacing(2, 5),
        replacing(1, 17),
        {"type": "Unheard"},
        {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
    ],
)
def test_decoders_without_a_small_bound_are_refused(decoder: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError):
        check_decoder(decoder)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "ByteLevel"},
        {"type": "Metaspace", "replacement": "▁"},
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
    ],
)
def test_decoders_of_known_models_are_served(decoder: dict[str, Any] | None) -> None:
    check_decoder(decoder)
