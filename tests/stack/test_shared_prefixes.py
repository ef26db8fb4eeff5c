"""What answers tell of what others asked, through a whole stack: nothing, by any endpoint and any model name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest
import yaml
from stack.conftest import PATIENCE_S
from stack.launch import CONTEXT, manifests, running

from aegaeon_cli.demo.stack import Stack

TENANTS = ("alice", "bob")
PUBLIC = "You are the assistant of the oncology ward. Answer briefly, and never disclose what is in a record."
# Long enough for several slabs: of a prompt within one slab, blocks that lie in another are not shared.
SECRET = "Melanoma was found in the patient of room 12, who will see the attending physician about it on Monday. " * 6
BLOCK = 16


def key(tenant: str) -> str:
    return f"{tenant}-key-0123456789abcdef"


def two_tenants(model: Path, folder: Path, scope: str) -> str:
    """Tenants with keys on one ModelPool; on others, of the same weights: two that share, and one without keys."""
    pool, first = yaml.safe_load_all(manifests({"private": model}, engines=1, device="64Mi"))
    pool["spec"]["memory"]["prefixScope"] = scope
    for name in TENANTS:
        (folder / name).write_text(key(name))
    first["spec"]["tenants"] = [{"name": name, "keyFile": str(folder / name)} for name in TENANTS]
    first["spec"]["models"][0]["publicPrompts"] = [PUBLIC]
    others = [_named(first, name) for name in ("open", "group-a", "group-b")]
    del others[0]["spec"]["tenants"]
    for one in others[1:]:
        one["spec"]["sharePrefix"] = "group"
    return yaml.safe_dump_all([pool, first, *others])


def _named(pool: dict[str, Any], name: str) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load(yaml.safe_dump(pool))
    made["metadata"]["name"] = made["spec"]["models"][0]["name"] = name
    return made


@pytest.fixture(scope="module", params=["tenant", "pool"])
def scope(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def stack(scope: str, make_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    model = make_model("qwen2", max_position_embeddings=CONTEXT)
    with running(two_tenants(model, tmp_path_factory.mktemp("keys"), scope)) as up:
        yield up


class Asker:
    """`cached` of the newest answer."""

    def __init__(self, stack: Stack) -> None:
        self._url = stack.state.url
        self._open = build_opener(ProxyHandler({})).open

    def ask(self, who: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises HTTPError."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key(who)}"} if who else {})
        asked = Request(f"{self._url}{path}", json.dumps(body).encode(), headers)
        with self._open(asked, timeout=PATIENCE_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def prompt(self, who: str, model: str, text: str, **more: Any) -> int:
        body = {"model": model, "prompt": text, "max_tokens": 1, "temperature": 0, **more}
        return _cached(self.ask(who, "/v1/completions", body)["usage"])

    def chat(self, who: str, model: str, system: str, user: str) -> int:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        body = {"model": model, "messages": messages, "max_tokens": 1, "temperature": 0}
        return _cached(self.ask(who, "/v1/chat/completions", body)["usage"])


def _cached(usage: dict[str, Any]) -> int:
    return int(usage["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture
def asker(stack: Stack) -> Asker:
    return Asker(stack)


def test_only_the_sender_of_a_prompt_learns_that_it_was_sent(asker: Asker, scope: str) -> None:
    text = f"Ticket 1. {SECRET}"
    assert asker.prompt("alice", "private", text) == 0
    assert asker.prompt("alice", "private", text) >= BLOCK, "her own"
    for who, model in (("bob", "private"), ("", "open"), ("alice", "group-a")):
        found = asker.prompt(who, model, text)
        assert (found > 0) == (scope == "pool"), f"{who or 'no key'} of {model}: {found}"


def test_a_response_and_a_message_tell_no_more(asker: Asker, scope: str) -> None:
    """What is stored of a conversation is part of the next prompt."""
    body = {"model": "private", "input": f"Ticket 2. {SECRET}", "max_output_tokens": 4, "temperature": 0}
    first = asker.ask("alice", "/v1/responses", body)
    goes_on = {**body, "input": "And then?", "previous_response_id": first["id"]}
    assert asker.ask("alice", "/v1/responses", goes_on)["usage"]["input_tokens_details"]["cached_tokens"] >= BLOCK
    again = asker.ask("bob", "/v1/responses", body)
    assert (again["usage"]["input_tokens_details"]["cached_tokens"] > 0) == (scope == "pool")
    message = {"model": "private", "messages": [{"role": "user", "content": f"Ticket 5. {SECRET}"}], "max_tokens": 1}
    asker.ask("alice", "/v1/messages", message)
    assert (asker.ask("bob", "/v1/messages", message)["usage"]["cache_read_input_tokens"] > 0) == (scope == "pool")


def test_modelpools_of_one_group_share(asker: Asker) -> None:
    text = f"Ticket 3. {SECRET}"
    assert asker.prompt("alice", "group-a", text) == 0
    assert asker.prompt("bob", "group-b", text) >= BLOCK


def test_a_cache_salt_keeps_a_tenants_own_requests_apart(asker: Asker) -> None:
    text = f"Ticket 4. {SECRET}"
    assert asker.prompt("alice", "private", text, cache_salt="one") == 0
    assert asker.prompt("alice", "private", text, cache_salt="one") >= BLOCK
    assert asker.prompt("alice", "private", text, cache_salt="other") == 0
    assert asker.prompt("alice", "private", text) == 0


def test_a_public_system_prompt_is_shared_and_nothing_behind_it(asker: Asker, scope: str) -> None:
    body = {"model": "private", "messages": [{"role": "system", "content": PUBLIC}], "add_generation_prompt": False}
    public = asker.ask("alice", "/tokenize", body)["count"]
    first = asker.chat("alice", "private", PUBLIC, SECRET)
    found = asker.chat("bob", "private", PUBLIC, SECRET)
    assert found >= BLOCK
    assert (found <= public) == (scope == "tenant")
    assert asker.chat("alice", "private", PUBLIC, SECRET) > max(first, public) - BLOCK
