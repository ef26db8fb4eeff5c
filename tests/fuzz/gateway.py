"""Parsers of the gateway: request bodies, files of a model's text, chat templates, tenants, tokens of engines."""

from __future__ import annotations

import contextlib
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

from fuzz.shape import Draw, json_input, raw, received
from fuzz.target import One, Target

_COMMON = {
    "model": "m", "temperature": 0.7, "top_p": 0.9, "n": 2, "presence_penalty": 0.5, "frequency_penalty": 0.5,
    "logit_bias": {"7": -100}, "seed": 7, "stop": ["a", "b"], "max_tokens": 5, "stream": True,
    "stream_options": {"include_usage": True}, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1,
    "stop_token_ids": [1, 2], "min_tokens": 1, "ignore_eos": True, "return_token_ids": True, "user": "u",
    "metadata": {"a": "b"}, "service_tier": "auto",
}  # fmt: skip
_MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hello"}], "name": "ann"},
    {"role": "assistant", "content": None},
]
CHATS = [
    {"model": "m", "messages": [{"role": "user", "content": "Hello"}]},
    {**_COMMON, "messages": _MESSAGES, "max_completion_tokens": 9, "logprobs": True, "top_logprobs": 3},
]
COMPLETIONS = [
    {"model": "m", "prompt": "Hello"},
    {**_COMMON, "prompt": ["a", "b"], "logprobs": 3},
    {**_COMMON, "prompt": [[1, 2], [3]], "echo": True},
    {"model": "m", "prompt": [1, 2, 3], "best_of": 1, "suffix": None},
]
EMBEDDINGS = [
    {"model": "m", "input": "Hello"},
    {"model": "m", "input": [[1, 2], [3]], "encoding_format": "base64", "dimensions": 8, "user": "u", "priority": 0},
    {"model": "m", "input": ["a", "b"], "truncate_prompt_tokens": -1, "truncation_side": "left", "padding": None},
]
SCORES = [
    {"model": "m", "text_1": "a", "text_2": ["b", "c"], "use_activation": False, "instruction": "i"},
    {"model": "m", "queries": ["a"], "documents": ["b"], "max_tokens_per_doc": 3, "chat_template_kwargs": {"a": 1}},
]
_LETTERS = {piece: number + 2 for number, piece in enumerate((*"abcdefghijklmnopqrstuvwxyzHĠ<>|{}", "lo"))}
_TEXT_FILES: dict[str, Any] = {
    "generation_config.json": {
        "eos_token_id": [1, 2], "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05
    },
    "config.json": {"eos_token_id": 1, "max_position_embeddings": 128},
    "tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
        "chat_template": "{% for m in messages %}{{ m.content | trim }}{% endfor %}", "model_max_length": 128,
        "added_tokens_decoder": {"0": {"content": "<s>", "special": True}}, "clean_up_tokenization_spaces": False,
    },
    "tokenizer.json": {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": {"type": "NFC"}, "post_processor": None,
        "added_tokens": [
            {"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i, c in enumerate(("<s>", "</s>"))
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": _LETTERS, "merges": [["l", "o"]]},
    },
}  # fmt: skip
_TEXT_WORDS = (
    *(key for content in _TEXT_FILES.values() for key in content), "type", "vocab", "merges", "content", "special",
    "id", "Split", "Regex", "pattern", "Sequence", "Metaspace", "Replace", "Unigram", "WordPiece", "WordLevel",
    "<s>", "lo",
)  # fmt: skip
_POOLED_WORDS = tuple(sorted({"items", "data_1", "m"}.union(*EMBEDDINGS, *SCORES)))
WORDS = (
    *_COMMON, "messages", "prompt", "role", "content", "type", "text", "name", "user", "assistant", "system", "tools",
    "developer", "response_format", "guided_json",
    "guided_regex", "structured_outputs", "logprobs", "top_logprobs", "echo", "best_of", "suffix", "tool_calls", "m",
)  # fmt: skip


def _body(documents: list[dict[str, Any]], kind: str, _: Path) -> One:
    from aegaeon_gateway.errors import ApiError
    from aegaeon_gateway.request import parse, schema

    request = getattr(schema, kind)

    def feed(data: bytes) -> None:
        try:
            parsed = parse.parse(request, json_input(data, documents, WORDS))
        except ApiError as error:
            json.dumps(error.body()).encode()
            assert 400 <= error.status < 500, error
            return
        check_bounds(parsed)

    return feed


def _pooled(_: Path) -> One:
    from aegaeon_gateway.errors import ApiError
    from aegaeon_gateway.request import parse, pooled

    def feed(data: bytes) -> None:
        try:
            embeds = parse.parse_embedding(json_input(data, EMBEDDINGS, _POOLED_WORDS))
            assert 1 <= len(embeds.prompts) <= pooled.MAX_INPUTS
        except ApiError as error:
            assert 400 <= error.status < 500, error
        try:
            scores = parse.decoded(pooled.ScoreRequest, json_input(data, SCORES, _POOLED_WORDS))
            assert all(query and document for query, document in pooled.pairs_of(scores))
        except ApiError as error:
            assert 400 <= error.status < 500, error
        except ValueError as error:
            assert len(str(error)) < 200, error

    return feed


def check_bounds(parsed: Any) -> None:
    """What an engine computes with is finite and within the bounds that are documented; None: the model's own."""
    bounds = {
        "temperature": (0, 2),
        "top_p": (1e-6, 1),
        "min_p": (0, 1),
        "presence_penalty": (-2, 2),
        "frequency_penalty": (-2, 2),
        "repetition_penalty": (0.01, 10),
        "n": (1, 128),
    }
    for name, (least, most) in bounds.items():
        value = getattr(parsed, name)
        assert value is None or least <= value <= most, f"{name} is {value}"  # also of one that is not a number
    assert all(abs(bias) <= 100 for bias in (parsed.logit_bias or {}).values())
    assert len(parsed.stops) <= 16


def _text_file(name: str, documents: list[Any], words: tuple[str, ...], home: Path) -> One:
    """One of the files that a model's text is made of, the others as they should be."""
    from aegaeon_gateway.errors import ApiError, TokenizerError
    from aegaeon_gateway.workers.model import load

    for file, content in _TEXT_FILES.items():
        (home / file).write_text(json.dumps(content))
    load(home).render([{"role": "user", "content": "imports"}])  # which no input's time limit is to count
    config = home / "tokenizer_config.json"
    config.write_text("{}")
    with contextlib.suppress(TokenizerError):
        load(home)  # nor those of another class of tokenizers, torch among them
    config.write_text(json.dumps(_TEXT_FILES[config.name]))

    def feed(data: bytes) -> None:
        (home / name).write_bytes(json_input(data, documents, words))
        try:
            text = load(home)
            text.described(b"key")
        except TokenizerError as error:
            assert len(str(error)) < 2000, "a refusal as long as the file"
            return
        assert all(math.isfinite(value) for value in text.defaults.values()), text.defaults
        assert all(type(value) is int and 0 <= value < 2**32 for value in text.eos_ids), text.eos_ids
        with contextlib.suppress(ApiError):
            ids = text.encode(text.render([{"role": "user", "content": "Hello"}]), special=False)
            text.decode(ids)

    def panics_refused(data: bytes) -> None:
        """As the fork server and its workers do: a panic of `tokenizers` is none of Exception."""
        try:
            feed(data)
        except BaseException as error:  # pyo3 exports no class for it
            if type(error).__name__ != "PanicException":
                raise

    return panics_refused


def _template(_: Path) -> One:
    from jinja2.exceptions import TemplateError
    from transformers.utils.chat_template_utils import _compile_jinja_template

    pieces = (
        "{{ bos_token }}", "{% for m in messages %}", "{% endfor %}", "{{ m.content | trim }}",
        "{% if m.role == 'user' %}",
        "{% endif %}", "{{ raise_exception('x') }}", "{% set ns = namespace(a=1) %}", "{{ m['content'] + eos_token }}",
        "{% macro f(x) %}{{ x }}{% endmacro %}", "{{ f(1) }}", "{{ messages | tojson }}", "{% generation %}",
        "{{ ''.__class__.__mro__ }}", "{{ messages[0] }}", "{% for i in range(3) %}", "{{ 'a' * 10 }}", "{{ x.y.z }}",
    )  # fmt: skip

    def feed(data: bytes) -> None:
        body = raw(data)
        draw = Draw(data[1:])
        text = "".join(draw.one_of(pieces) for _ in range(draw.below(12))) if body is None else body.decode("latin-1")
        if "range" in text or "*" in text:
            return  # unbounded work is the worker's limits to end, not the parser's
        with contextlib.suppress(TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError):
            compiled = _compile_jinja_template(text)
            compiled.render(messages=[{"role": "user", "content": "x"}], bos_token="<s>", eos_token="</s>")

    return feed


def _tokens(_: Path) -> One:
    """What an engine pushes at a gateway, into requests that are open."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    from aegaeon_gateway.generation.generation import Generation
    from aegaeon_gateway.generation.request import Request
    from aegaeon_gateway.metrics import Metrics
    from aegaeon_gateway.request.prompt import Prompt
    from aegaeon_gateway.rpc.open_requests import OpenRequests
    from aegaeon_gateway.rpc.sink import take
    from aegaeon_gateway.text.detokenize import Vocabulary
    from aegaeon_gateway.workers.wire import Options
    from aegaeon_proto.v1 import gateway_pb2, model_pb2

    metrics = Metrics().of("m")
    vocabulary = Vocabulary(Tokenizer(WordLevel(_LETTERS | {"<unk>": 0}, unk_token="<unk>")))
    options = Options(n=2, stream=True)
    limits = [model_pb2.Limits(max_tokens=8)]
    prompts, spec = [Prompt.of([1, 2])], model_pb2.ModelSpec(name="m")
    request = Request("r", spec, vocabulary, options, model_pb2.Sampling(), prompts, limits, [""], 0.0)

    def feed(data: bytes) -> None:
        draw, body = Draw(data[1:]), raw(data)
        open_ = OpenRequests()
        generation = Generation(request, 0, metrics, lambda: None, lambda: None)
        open_.add(generation)
        for choice in generation.choices:
            choice.submit()
        for _ in range(4):
            batch = received(body, draw, gateway_pb2.TokenBatch, ("r", "s"))
            if batch is None:
                return
            take(open_, batch)
            list(generation.drain())
        for choice in generation.choices:
            assert len(choice.tokens) <= 8, "more tokens than were asked for"

    return feed


TARGETS = (
    Target("http_chat", partial(_body, CHATS, "ChatRequest"), ("aegaeon_gateway",)),
    Target("http_pooled", _pooled, ("aegaeon_gateway",)),
    Target("http_completions", partial(_body, COMPLETIONS, "CompletionRequest"), ("aegaeon_gateway",)),
    *(
        Target(
            name.removesuffix(".json"),
            partial(_text_file, name, [_TEXT_FILES[name]], _TEXT_WORDS),
            ("aegaeon_gateway",),
        )
        for name in ("generation_config.json", "tokenizer_config.json", "tokenizer.json")
    ),
    Target("chat_template", _template, ("jinja2",)),
    Target("token_batches", _tokens, ("aegaeon_gateway",)),
)
