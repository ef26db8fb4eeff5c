"""Transcripts of every family's documented format, cut at every position: what arrives is what was written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_gateway.dialects.call_stream import Tools
from aegaeon_gateway.dialects.families import FORCED, REASONING, TOOLS, Dialect, detected, ends_inside
from aegaeon_gateway.dialects.json_object import JsonObject
from aegaeon_gateway.dialects.pieces import Pieces, Reader, joined

KNOWN = frozenset({"get_weather", "add"})


@dataclass(frozen=True)
class Transcript:
    """What a model writes, and what a client gets of it. `passed_on`: of its calls, while they are generated."""

    dialect: Dialect
    text: str
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    inside: bool = False
    passed_on: bool = True


PARIS = ("get_weather", {"city": "Paris"})
SUM = ("add", {"a": 1, "b": [2, {"c": "</tool_call"}]})
HERMES = Dialect("hermes", "think")
MISTRAL = Dialect("mistral", "mistral")
DEEPSEEK = Dialect("deepseek", "think")
LLAMA3 = Dialect("llama3")
HARMONY = Dialect("harmony", "harmony")
PARIS_JSON = '{"name": "get_weather", "arguments": {"city": "Paris"}}'

TRANSCRIPTS = {
    "hermes: one call": Transcript(HERMES, f"<tool_call>\n{PARIS_JSON}\n</tool_call>", calls=[PARIS]),
    "hermes: text, two calls": Transcript(
        HERMES,
        f"I will look.\n<tool_call>\n{PARIS_JSON}\n</tool_call>\n<tool_call>\n"
        '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "</tool_call"}]}}\n</tool_call>',
        content="I will look.",
        calls=[PARIS, SUM],
    ),
    "hermes: reasoning, text, a call": Transcript(
        HERMES,
        f"<think>\nParis?\n\nYes: <b>\n</think>\n\nLooking.\n\n<tool_call>\n{PARIS_JSON}\n</tool_call>",
        content="Looking.",
        reasoning="Paris?\n\nYes: <b>",
        calls=[PARIS],
    ),
    "hermes: the end is missing": Transcript(HERMES, f"<tool_call>\n{PARIS_JSON}\n", calls=[PARIS]),
    "hermes: cut in the middle": Transcript(
        HERMES, 'So:\n<tool_call>\n{"name": "add", "argu', content='So:\n<tool_call>\n{"name": "add", "argu'
    ),
    "hermes: no JSON": Transcript(
        HERMES, "a\n\n<tool_call>add 1 2</tool_call>\nb\n", content="a\n\n<tool_call>add 1 2</tool_call>\nb\n"
    ),
    "hermes: arguments that are no object": Transcript(
        HERMES,
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        content='<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
    ),
    "think: the prompt has opened it": Transcript(
        HERMES, "Well.\n</think>\n\nYes.\n", content="Yes.\n", reasoning="Well.", inside=True
    ),
    "think: never closed": Transcript(HERMES, "<think>\nWell\n", reasoning="Well\n"),
    "think: empty": Transcript(HERMES, "<think>\n\n</think>\n\nYes.", content="Yes."),
    "think: none": Transcript(HERMES, "\n1 < 2 <thin, <tool\n", content="\n1 < 2 <thin, <tool\n"),
    "llama3: bare": Transcript(
        LLAMA3, '{"name": "get_weather", "parameters": {"city": "Paris"}}', calls=[PARIS]
    ),
    "llama3: marked, two": Transcript(
        LLAMA3,
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; '
        '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "</tool_call"}]}}',
        calls=[PARIS, SUM],
    ),
    "llama3: JSON that is an answer": Transcript(
        LLAMA3, ' {"name": "Paris", "parameters": {}}', content=' {"name": "Paris", "parameters": {}}'
    ),
    "llama3: code of the built-in tool": Transcript(
        LLAMA3, '<|python_tag|>brave_search.call(query="x")', content='<|python_tag|>brave_search.call(query="x")'
    ),
    "llama3: text": Transcript(LLAMA3, 'It is {"a": 1}.', content='It is {"a": 1}.'),
    "mistral: a list": Transcript(
        MISTRAL,
        f'[TOOL_CALLS] [{PARIS_JSON}, {{"name": "add", "arguments": {json.dumps(SUM[1])}}}]',
        calls=[PARIS, SUM],
    ),
    "mistral: names and arguments": Transcript(
        MISTRAL,
        f'Sure.[TOOL_CALLS]get_weather[ARGS]{{"city": "Paris"}}[TOOL_CALLS]add[CALL_ID]abc[ARGS]{json.dumps(SUM[1])}',
        content="Sure.",
        calls=[PARIS, SUM],
    ),
    "mistral: reasoning": Transcript(
        MISTRAL, "[THINK]Hm.[/THINK]Paris [TOOL", content="Paris [TOOL", reasoning="Hm."
    ),
    "mistral: no list": Transcript(MISTRAL, "[TOOL_CALLS]add", content="[TOOL_CALLS]add"),
    "deepseek: V3, two calls": Transcript(
        DEEPSEEK,
        "Both.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n'
        f"{json.dumps(SUM[1])}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        content="Both.",
        calls=[PARIS, SUM],
    ),
    "deepseek: V3.1, reasoning": Transcript(
        DEEPSEEK,
        "Hm.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        reasoning="Hm.",
        calls=[PARIS],
        inside=True,
    ),
    "harmony: an answer": Transcript(
        HARMONY,
        "<|channel|>analysis<|message|>Hm.\n<|end|><|start|>assistant<|channel|>final<|message|>Paris.\n",
        content="Paris.\n",
        reasoning="Hm.\n",
    ),
    "harmony: a preamble and calls": Transcript(
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Looking.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Paris"}<|call|><|start|>assistant to=functions.add<|channel|>commentary json<|message|>'
        f"{json.dumps(SUM[1])}",
        content="Looking.",
        reasoning="Hm.",
        calls=[PARIS, SUM],
    ),
    "harmony: a call that is none": Transcript(
        HARMONY,
        "<|channel|>commentary to=functions.add<|message|>1 and 2<|call|>",
        content="1 and 2",
    ),
}  # fmt: skip


def read(reader: Reader | None, parts: list[str]) -> Pieces:
    assert reader is not None
    out = Pieces()
    for pieces in (*map(reader.feed, parts), reader.flush()):
        out.content += pieces.content
        out.reasoning += pieces.reasoning
        out.calls += pieces.calls
    out.calls = joined(out.calls)
    return out


def reader_of(transcript: Transcript, *, live: bool = False) -> Reader | None:
    return transcript.dialect.reader(Tools(KNOWN, live=live), inside=transcript.inside)


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_is_read_the_same_wherever_it_is_cut(name: str) -> None:
    transcript = TRANSCRIPTS[name]
    text = transcript.text
    for live, parts in (
        *((live, parts) for live in (False, True) for parts in ([text], list(text))),
        *((bool(at % 2), [text[:at], text[at:]]) for at in range(len(text))),
    ):
        out = read(reader_of(transcript, live=live), parts)
        assert (out.content, out.reasoning) == (transcript.content, transcript.reasoning), parts
        assert [(call.name, json.loads(call.arguments)) for call in out.calls] == transcript.calls, parts


@given(st.sampled_from(sorted(TRANSCRIPTS)), st.data())
def test_whatever_a_model_writes_is_read_the_same_however_it_is_cut(name: str, data: st.DataObject) -> None:
    transcript, live = TRANSCRIPTS[name], data.draw(st.booleans())
    marks = sorted(transcript.dialect.marks)
    words = st.sampled_from(
        [*marks, PARIS_JSON, PARIS_JSON[:-5], "add[ARGS]", "{", "\n", " x", "<", "[", ";", '"', "]}"]
    )
    parts = data.draw(st.lists(words, max_size=12))
    text = "".join(parts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    cut = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(reader_of(transcript, live=live), [text])
    assert read(reader_of(transcript, live=live), cut) == whole
    if live and not read(reader_of(transcript), [text]).content:
        assert whole == read(reader_of(transcript), [text])
    if transcript.dialect.tools != "harmony":
        written = whole.content + whole.reasoning + "".join(call.arguments for call in whole.calls)
        assert written.count("x") == text.count("x"), "something is lost"


def test_text_without_marks_is_shown_at_once() -> None:
    for dialect in {transcript.dialect for transcript in TRANSCRIPTS.values()} - {HARMONY}:
        reader = dialect.reader(Tools(KNOWN), inside=False)
        assert reader is not None
        assert [reader.feed(part).content for part in ("Hello", " there", ".")] == ["Hello", " there", "."]


@pytest.mark.parametrize("name", [name for name, one in TRANSCRIPTS.items() if one.calls])
def test_arguments_are_passed_on_while_they_are_generated(name: str) -> None:
    transcript = TRANSCRIPTS[name]
    reader = reader_of(transcript, live=True)
    assert reader is not None
    parts = [call for char in transcript.text for call in reader.feed(char).calls]
    begun = [part.name for part in parts if part.name]
    assert begun == [name for name, _ in transcript.calls]
    longest = max(map(len, transcript.dialect.marks))
    assert all(len(part.arguments) <= longest for part in parts), (
        "more than what may be the beginning of a mark was held"
    )
    assert joined(parts) == read(reader_of(transcript), [transcript.text]).calls
    assert not reader.flush().calls


ADDS = '{"name": "add", "arguments": {"a": 1, "b": '
BROKEN: list[tuple[Dialect, str, str, str]] = [
    # what is written; the arguments and the content that come of it in a stream
    (HERMES, f"So:\n<tool_call>\n{ADDS}zwei}}}}\n</tool_call>\nx", '{"a": 1, "b": ', "So:zwei}}\n</tool_call>\nx"),
    (HERMES, f"<tool_call>\n{ADDS}", '{"a": 1, "b": ', ""),
    (HERMES, f"<tool_call>{ADDS}2}}</tool_call>", '{"a": 1, "b": 2}', "</tool_call>"),
    (MISTRAL, f"[TOOL_CALLS][{ADDS}2}}}}, {ADDS}3", '{"a": 1, "b": 2}{"a": 1, "b": 3', ""),
    (MISTRAL, '[TOOL_CALLS]add[ARGS]{"a": nil}', '{"a": n', "il}"),
    (LLAMA3, ADDS.replace("arguments", "parameters") + "2}} and", '{"a": 1, "b": 2}', "} and"),
    (HARMONY, '<|channel|>commentary to=functions.add<|message|>{"a": 1,}<|call|>', '{"a": 1,', "}"),
    (Dialect(FORCED), f"[{ADDS}2", '{"a": 1, "b": 2', ""),
]


@pytest.mark.parametrize("case", range(len(BROKEN)))
def test_a_call_that_breaks_off_keeps_its_arguments_and_the_rest_is_content(case: int) -> None:
    dialect, text, arguments, content = BROKEN[case]
    for parts in ([text], list(text)):
        out = read(dialect.reader(Tools(KNOWN, live=True), inside=False), parts)
        assert {call.name for call in out.calls} == {"add"}
        assert ("".join(call.arguments for call in out.calls), out.content) == (arguments, content)
        held = read(dialect.reader(Tools(KNOWN), inside=False), parts)
        assert (held.calls, held.content) == ([], text if dialect != HARMONY else '{"a": 1,}')


def test_a_call_of_a_tool_that_is_unknown_comes_whole_and_of_one_that_is_barred_is_content() -> None:
    text = f"<tool_call>{PARIS_JSON}</tool_call>"
    for tools, calls in ((Tools(live=True), 1), (Tools(barred=KNOWN, live=True), 0), (Tools(barred=KNOWN), 0)):
        reader = HERMES.reader(tools, inside=False)
        assert reader is not None
        before = [reader.feed(char) for char in text[:-1]]
        assert not any(pieces.calls for pieces in before)
        last = reader.feed(text[-1])
        assert (len(last.calls), last.content) == (calls, "" if calls else text)


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSONS, max_size=4), st.booleans(), st.data())
def test_a_json_object_ends_where_it_does_and_breaks_where_it_is_none(
    value: dict[str, Any], ascii_only: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=data.draw(st.sampled_from([None, 1])))
    whole = JsonObject()
    assert whole.feed(text + "} x") == len(text)
    assert whole.complete
    at = data.draw(st.integers(0, len(text)))
    changed = text[:at] + data.draw(st.sampled_from([*'{}[]",:\\x0-.e\n', ""])) + text[at + 1 :]
    scanned = JsonObject()
    used = sum(map(scanned.feed, changed)) if scanned.feed("") == 0 else 0
    try:
        json.loads(changed)
    except ValueError:
        assert not scanned.complete or used < len(changed)
    else:
        assert (scanned.complete, used) == (True, len(changed.rstrip()))


def test_a_template_gives_its_family_away() -> None:
    qwen = "{%- if tools %}...<tool_call></tool_call>{% endif %}{{ '<think>\\n\\n</think>' }}"
    assert detected(qwen) == Dialect("hermes", "think")
    assert detected("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]") == Dialect("mistral", "")
    assert detected("<|start_header_id|>{{ tools }}<|python_tag|>") == Dialect("llama3", "")
    assert detected("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜> content.split('</think>')") == Dialect(
        "deepseek", "think"
    )
    assert detected("<|start|>system<|channel|>") == Dialect("harmony", "harmony")
    assert detected("<tool_call>\n<function=name>") == Dialect("", "")
    assert detected("{{ messages }}") == Dialect("", "")
    assert Dialect("", "").reader(Tools(), inside=False) is None


def test_a_prompt_that_ends_with_the_opening_is_inside() -> None:
    assert ends_inside(HERMES, "<|im_start|>assistant\n<think>\n")
    assert not ends_inside(HERMES, "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not ends_inside(LLAMA3, "<think>")


def test_no_mark_is_the_beginning_of_another_of_its_family() -> None:
    for tools in (*TOOLS, ""):
        for reasoning in (*REASONING, ""):
            marks = Dialect(tools, reasoning).marks
            assert not [(a, b) for a in marks for b in marks if a != b and b.startswith(a)]
