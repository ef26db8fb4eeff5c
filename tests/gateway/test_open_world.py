"""What a request may name beside what works here: dropped and said, or refused by name. Nothing is dropped silently."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from gateway.conftest import HI, Pool, StartGateway
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.elsewhere import HONOURED, MEANINGFUL, POOLED, SOURCES
from aegaeon_gateway.request.misspelt import meant
from aegaeon_gateway.request.parse import KNOWN, LABELS, OPEN, decoded
from aegaeon_gateway.request.prompt import Prompt
from aegaeon_gateway.request.receipt import HEADER, MAX_HEADER_BYTES, OTHER, Receipt, header_of, labels_of
from aegaeon_gateway.request.schema import ChatRequest, CompletionRequest
from aegaeon_gateway.tenancy.model import digest
from aegaeon_gateway.workers.model import ModelText, load
from aegaeon_gateway.workers.wire import Done, EndpointName, Job
from aegaeon_gateway.workers.work import run

HERE = Path(__file__).parent
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% for call in message.tool_calls or [] %}"
    "<tool_call>{{ call.function.arguments | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{# <think></think> enable_thinking #}"
)
LENGTH = 65536
BASES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [HI]},
    "completions": {"prompt": "hi"},
    "responses": {"input": [HI]},
    "messages": {"messages": [HI], "max_tokens": 5},
    "count_tokens": {"messages": [HI]},
}
FIELDS: list[dict[str, Any]] = json.loads((HERE / "field_requests.json").read_text())
PUBLISHED: dict[str, Any] = json.loads((HERE / "published_fields.json").read_text())
# Of the published fields those that ask for what cannot be given, with the reason why that is no hint.
ASKS = {
    ("chat", "audio"): "speech in the answer",
    ("chat", "function_call"): "the older form of tools, whose answer has another form",
    ("chat", "functions"): "the same",
    ("chat", "logit_bias"): "the example is no token",
    ("chat", "modalities"): "speech in the answer",
    ("chat", "moderation"): "a verdict in the answer",
    ("chat", "response_format"): "the example has no schema",
    ("chat", "tool_choice"): "a tool that is not there",
    ("chat", "top_logprobs"): "the example has no logprobs",
    ("completions", "best_of"): "the best of several",
    ("completions", "logit_bias"): "the example is no token",
    ("completions", "suffix"): "a text that fits before it",
    ("responses", "conversation"): "a conversation that is kept elsewhere",
    ("responses", "moderation"): "a verdict in the answer",
    ("responses", "prompt"): "a prompt that is kept elsewhere",
    ("responses", "tool_choice"): "a tool that is not there",
    ("responses", "top_logprobs"): "the example has no logprobs",
    ("messages", "container"): "code that is run",
    ("messages", "inference_geo"): "a place where the model runs",
    ("messages", "tool_choice"): "a tool that is not there",
}


@pytest.fixture(scope="module")
def text(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    """A model whose template knows tools and thoughts."""
    directory = tmp_path_factory.mktemp("tools")
    for file in model_directory.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    made = load(directory)
    made.read_grammars()
    return made


def prepared(
    text: ModelText, endpoint: EndpointName, body: dict[str, Any], *, strict: bool = False
) -> tuple[Any, bytes]:
    """Prepare a body as a worker does. Raises InvalidRequestError."""
    job = Job(b"", endpoint, "tiny", LENGTH, strict=strict)
    return run(job, json.dumps({"model": "tiny", **body}).encode(), text, lambda stage: None)


def prompt(text: ModelText, endpoint: EndpointName, body: dict[str, Any]) -> str:
    done, tail = prepared(text, endpoint, body)
    assert isinstance(done, Done)
    return text.decode(list(Prompt(done.tokens[0], tail).ids), skip_special=False)


@pytest.mark.parametrize("case", FIELDS, ids=[case["name"] for case in FIELDS])
def test_a_body_of_the_field_is_answered_and_what_has_no_effect_is_said(text: ModelText, case: dict[str, Any]) -> None:
    if (param := case.get("refused")) is not None:
        with pytest.raises(InvalidRequestError) as caught:
            prepared(text, case["endpoint"], case["body"])
        assert caught.value.param == param
        return
    done, _ = prepared(text, case["endpoint"], case["body"])
    assert list(done.ignored) == case["ignored"]


def test_each_published_field_is_answered_or_asks_for_what_cannot_be_given(text: ModelText) -> None:
    refused: dict[tuple[str, str], str] = {}
    unsaid = []
    counted = [entry for entry in PUBLISHED["fields"] if entry["endpoint"] == "messages"]
    counted = [
        {**entry, "endpoint": "count_tokens"} for entry in counted if entry["field"] in PUBLISHED["count_tokens"]
    ]
    for entry in [*PUBLISHED["fields"], *counted]:
        endpoint, name, value = entry["endpoint"], entry["field"], entry["value"]
        body = {**BASES[endpoint], name: [HI, *value] if name == "input" and isinstance(value, list) else value}
        try:
            done, _ = prepared(text, endpoint, body)
        except InvalidRequestError as error:
            refused.setdefault((endpoint, name), error.message)
            continue
        if not is_said(endpoint, name, value, done.ignored):
            unsaid.append(entry)
    assert {key: text for key, text in refused.items() if key not in ASKS} == {}
    assert unsaid == []
    assert len(PUBLISHED["fields"]) > 500


def is_said(endpoint: str, name: str, value: Any, ignored: tuple[str, ...]) -> bool:
    """A field at the top works, asks for nothing, or is in the receipt."""
    kind = next(candidate for candidate in OPEN if endpoint in _ENDPOINTS[candidate.__name__])
    refused = KNOWN[kind].refused.get(name)
    works = name in kind.__struct_encode_fields__ or value is None or (refused is not None and not refused.asks(value))
    return works or name in ignored


_ENDPOINTS = {
    "ChatRequest": ("chat",), "CompletionRequest": ("completions",), "ResponsesRequest": ("responses",),
    "MessagesRequest": ("messages",), "CountRequest": ("count_tokens",), "TokenizeRequest": (), "EmbeddingRequest": (),
    "RerankRequest": (), "ScoreRequest": (),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MEANINGFUL))
@pytest.mark.parametrize("endpoint", ["chat", "completions", "responses", "messages"])
def test_what_changes_answers_elsewhere_is_refused_by_name_or_works(text: ModelText, name: str, endpoint: Any) -> None:
    entry = MEANINGFUL[name]
    assert entry.server in ("", *SOURCES)
    assert entry.asks(entry.example)
    with pytest.raises(InvalidRequestError) as caught:
        prepared(text, endpoint, {**BASES[endpoint], name: entry.example})
    assert caught.value.param == name
    for neutral in entry.allowed:
        assert prepared(text, endpoint, {**BASES[endpoint], name: neutral})[0].ignored == ()


@pytest.mark.parametrize("name", sorted(POOLED))
def test_what_changes_embeddings_elsewhere_is_refused_by_name(text: ModelText, name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        prepared(text, "embeddings", {"input": "hi", name: POOLED[name].example})
    assert caught.value.param == name


@pytest.mark.parametrize("name", sorted(HONOURED))
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_another_servers_name_does_what_ours_does(text: ModelText, name: str, endpoint: Any) -> None:
    examples = {"guided_grammar": 'root ::= "a"', "guided_json": {"type": "object"}, "guided_regex": "a+"}
    value: Any = examples.get(HONOURED[name], 7)
    theirs, ours = (
        prepared(text, endpoint, {**BASES[endpoint], "seed": 1, alias: value}) for alias in (name, HONOURED[name])
    )
    assert theirs == ours
    with pytest.raises(InvalidRequestError, match="send one"):
        prepared(text, endpoint, {**BASES[endpoint], name: value, HONOURED[name]: value})


MISSES = {
    "max_token": "max_tokens", "max-tokens": "max_tokens", "maxTokens": "max_tokens", "temprature": "temperature",
    "tempreature": "temperature", "top_logprob": "top_logprobs", "presence_penality": "presence_penalty",
    "responce_format": "response_format", "stream_option": "stream_options", "tool": "tools", "sedd": "seed",
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "right"), MISSES.items())
def test_a_misspelt_name_is_refused_with_the_right_one(text: ModelText, wrong: str, right: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"did you mean {right}") as caught:
        prepared(text, "chat", {**BASES["chat"], wrong: 1})
    assert caught.value.param == wrong


def test_no_name_of_the_tables_is_taken_for_a_misspelling_of_another() -> None:
    known = {*ChatRequest.__struct_encode_fields__, *CompletionRequest.__struct_encode_fields__}
    sent = {entry["field"] for entry in PUBLISHED["fields"]}
    sent |= {"models", "provider", "route", "usage", "client_metadata"}
    sent -= {name for table in KNOWN.values() for name in (*table.refused, *table.no_effect)}
    assert {name: right for name in sent - known if (right := meant(name, known, {"model"}))} == {}


def test_a_misspelling_in_an_object_is_refused_but_none_in_what_came_before(text: ModelText) -> None:
    with pytest.raises(InvalidRequestError, match="did you mean include_usage"):
        prepared(text, "chat", {**BASES["chat"], "stream": True, "stream_options": {"include_usages": True}})
    done, _ = prepared(text, "chat", {"messages": [HI, {"role": "assistant", "content": "a", "contents": "b"}, HI]})
    assert done.ignored == ("messages[].contents",)


@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
@pytest.mark.parametrize("name", ["response_format", "tool_choice", "structured_outputs"])
def test_nothing_is_left_out_of_what_says_the_form_of_the_answer(text: ModelText, endpoint: Any, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        prepared(text, endpoint, {**BASES[endpoint], name: {"type": "json_object", "surprise": 1}})


# Values where a type belongs that cannot be hashed, and JSON that Python's reader refuses.
UNHASHABLE: list[tuple[EndpointName, dict[str, Any]]] = [
    ("responses", {"tools": [{"type": []}]}),
    ("responses", {"tool_choice": {"type": {}}}),
    ("responses", {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": []}]}}),
    ("responses", {"tools": [{"type": "function", "function": {"type": []}}]}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": []}]}]}),
    ("chat", {"tools": [{"type": {}}], "tool_choice": {"type": []}}),
]


@pytest.mark.parametrize(("endpoint", "part"), UNHASHABLE)
def test_any_json_may_be_where_a_type_belongs(text: ModelText, endpoint: EndpointName, part: dict[str, Any]) -> None:
    try:
        done, _ = prepared(text, endpoint, {**BASES[endpoint], "further": 1, **part})
    except InvalidRequestError:
        return
    assert "further" in done.ignored


@pytest.mark.parametrize("endpoint", ["chat", "completions", "responses", "messages"])
def test_a_number_or_a_depth_that_cannot_be_read_is_an_error_of_the_request(endpoint: str) -> None:
    [kind] = [candidate for candidate in OPEN if endpoint in _ENDPOINTS[candidate.__name__]]
    body = json.dumps({"model": "tiny", **BASES[endpoint]}).encode()[:-1] + b',"further":'
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        decoded(kind, body + b"1" * 5000 + b"}", Receipt())
    for depth in range(500, 1000, 10):  # some of them the types' decoder reads, and the other does not
        with suppress(InvalidRequestError):
            decoded(kind, body + b"[" * depth + b"]" * depth + b"}", Receipt())


def test_tools_of_namespaces_count_as_tools(text: ModelText) -> None:
    inner = [{"type": "function", "name": f"tool_{number}"} for number in range(600)]
    spaces = [{"type": "namespace", "name": f"space_{number}", "tools": inner} for number in range(2)]
    assert prepared(text, "responses", {**BASES["responses"], "tools": spaces[:1]})
    with pytest.raises(InvalidRequestError, match="1200 are more than 1024"):
        prepared(text, "responses", {**BASES["responses"], "tools": spaces})


def test_a_choice_that_demands_a_dropped_tool_is_refused(text: ModelText) -> None:
    search = {"type": "web_search"}
    for choice in (search, "required", {"type": "allowed_tools", "mode": "auto", "tools": [search]}):
        with pytest.raises(InvalidRequestError) as caught:
            prepared(text, "responses", {**BASES["responses"], "tools": [search], "tool_choice": choice})
        assert caught.value.param == "tool_choice"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(name=st.text("abcdefghij_", min_size=12, max_size=30).map("zz".__add__), value=JSON)
def test_unknown_names_in_history_never_fail_a_request_and_are_said(text: ModelText, name: str, value: Any) -> None:
    messages = [HI, {"role": "assistant", "content": "a", name: value}, {**HI, name: value}]
    assert prepared(text, "chat", {"messages": messages, name: 1})[0].ignored == (name, f"messages[].{name}")
    items = [{"type": "message", "role": "assistant", "content": "a", name: value}, HI]
    assert prepared(text, "responses", {"input": items})[0].ignored == (f"input[].{name}",)
    blocks = [{"role": "user", "content": [{"type": "text", "text": "a", name: value}]}]
    ignored = prepared(text, "messages", {"messages": blocks, "max_tokens": 5})[0].ignored
    assert ignored == (f"messages[].content[].{name}",)


@given(entries=st.lists(st.text(max_size=300), max_size=200))
def test_a_header_has_a_largest_size_and_labels_are_of_a_fixed_set(entries: list[str]) -> None:
    receipt = Receipt()
    for entry in entries:
        receipt.ignore(entry)
    for header in (header_of(entries), header_of(receipt.entries)):
        assert len(header) <= MAX_HEADER_BYTES
        assert header.isascii()
        assert header.isprintable()
    assert {*labels_of(entries, LABELS)} <= LABELS | {OTHER}


def test_the_labels_of_the_counter_are_few() -> None:
    assert len(LABELS) < 200
    assert list(labels_of(["tools[8] web_search", "messages[].reasoning_details", "made_up"], LABELS)) == [
        "tools",
        "messages.reasoning_details",
        OTHER,
    ]


def test_a_strict_request_is_refused_as_it_always_was(text: ModelText) -> None:
    bodies: list[dict[str, Any]] = [{"client_metadata": {}}, {"verbosity": "low"}, {"messages": [{**HI, "id": "a"}]}]
    for more in bodies:
        with pytest.raises(InvalidRequestError):
            prepared(text, "chat", {**BASES["chat"], **more}, strict=True)
    assert prepared(text, "chat", {**BASES["chat"], "user": "a"}, strict=True)[0].ignored == ()


def test_what_a_model_cannot_see_is_a_text_in_history_and_an_error_in_the_newest_message(text: ModelText) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    shown = {"role": "user", "content": [{"type": "text", "text": "look"}, image]}
    with pytest.raises(InvalidRequestError, match="other kinds of content"):
        prepared(text, "chat", {"messages": [shown]})
    rendered = prompt(text, "chat", {"messages": [shown, {"role": "assistant", "content": "a"}, HI]})
    assert "[image omitted: this model reads text]" in rendered


HISTORY = [
    # arguments as clients and models leave them, and what the template prints of them
    ("", "{}"),
    ("null", "{}"),
    ("[]", "{}"),
    ("{", '{"arguments": "{"}'),
    ("Paris", '{"arguments": "Paris"}'),
    ("[1]", '{"arguments": [1]}'),
    ('{"id": 18446744073709551616}', '{"id": 18446744073709551616}'),
    ('{"a": 1.5}', '{"a": 1.5}'),
]


@pytest.mark.parametrize(("arguments", "printed"), HISTORY)
def test_a_template_always_gets_an_object(text: ModelText, arguments: str, printed: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [HI, {"role": "assistant", "content": None, "tool_calls": [call]}, HI]
    assert f"<tool_call>{printed}</tool_call>" in prompt(text, "chat", {"messages": messages})
    items = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}, HI]
    assert f"<tool_call>{printed}</tool_call>" in prompt(text, "responses", {"input": items})


async def test_the_header_is_on_answers_and_streams_and_the_counter_counts(pool: Pool) -> None:
    for stream in (False, True):
        body = {"model": "tiny", "messages": [HI], "client_metadata": {"a": 1}, "made\nup": 1, "stream": stream}
        async with pool.http.post(f"{pool.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200
            assert response.headers[HEADER] == "client_metadata, made?up"
            await response.read()
    async with pool.http.post(f"{pool.url}/tokenize", json={"model": "tiny", "prompt": "hi", "zzz": 1}) as response:
        assert response.headers[HEADER] == "zzz"
    page = await pool.metrics()
    assert 'aegaeon_gateway_ignored_fields_total{field="client_metadata"} 2.0' in page
    assert 'aegaeon_gateway_ignored_fields_total{field="other"} 3.0' in page


async def test_one_tenant_may_be_strict(start_gateway: StartGateway, tmp_path: Path) -> None:
    file = tmp_path / "tenants.json"
    entry = {"models": ["tiny"], "quota": {}}
    tenants = [
        {**entry, "name": "open", "key_sha256": [digest("sk-open")]},
        {**entry, "name": "strict", "key_sha256": [digest("sk-strict")], "strict": True},
    ]
    file.write_text(json.dumps({"tenants": tenants}))
    async with start_gateway(tenants=str(file)) as pool:
        for key, status in (("sk-open", 200), ("sk-strict", 400)):
            headers = {"Authorization": f"Bearer {key}"}
            body = {"model": "tiny", "messages": [HI], "client_metadata": {}}
            got, answer, _ = await pool.post("/v1/chat/completions", body, headers=headers)
            assert got == status, answer
