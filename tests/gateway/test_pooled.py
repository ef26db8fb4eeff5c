"""Embeddings, reranking and scores over HTTP, by a peer that says what engines give."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway.conftest import STRICT, Pool, StartGateway, model_status
from gateway.peer import Peer
from numpy.typing import NDArray
from otlp_receiver import attributes, otlp_receiver
from tokenizers import Tokenizer

from aegaeon_gateway.http.endpoints import ENDPOINTS
from aegaeon_gateway.request.parse import KNOWN, OPEN
from aegaeon_gateway.request.pooled import BODIES
from aegaeon_gateway.workers.pooled import PREPARE
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1 import model_pb2

DIMENSIONS = 8
SCORE_TEMPLATE = (
    "{{ instruction | default('judge') }}{% for m in messages if m['role'] in ('query', 'document') %}"
    "<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
)


def vector_of(prompt: list[int]) -> NDArray[np.float32]:
    """What the peer's models make of a prompt."""
    return np.random.default_rng(prompt).standard_normal(DIMENSIONS).astype(np.float32)


class Pools(Peer):
    """`head`: numbers of its models' own head; a request that names tokens gets the logits of these."""

    head = DIMENSIONS

    def _token(
        self, submit: pb.Submit, seq: model_pb2.SeqId, epoch: int, index: int, token: int, finish: Any
    ) -> pb.Token:
        made = super()._token(submit, seq, epoch, index, token, finish)
        if submit.HasField("pooling"):
            vector = vector_of(list(submit.prompt))[: len(submit.pooling.logits_of) or self.head]
            made.pooled, made.token = vector.tobytes(), 0
        return made


def folder(source: Path, target: Path, files: dict[str, Any]) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    for name, document in files.items():
        (target / name).write_text(json.dumps(document))
    return target


def with_one_number(pool: Pool) -> None:
    """From here on the models' heads have one, as a reranker's."""
    assert isinstance(pool.peer, Pools)
    pool.peer.head = 1


@pytest.fixture
async def peer(tmp_path: Path, sockets: Path, model_directory: Path) -> Any:
    """One that generates, one that embeds, one with a classifier's head, and one that answers yes or no."""
    config = {"max_position_embeddings": 256, "hidden_size": DIMENSIONS}
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "Pooling", "Normalize")]
    embeds = folder(model_directory, tmp_path / "embeds", {"config.json": config, "modules.json": modules})
    classifier = {**config, "architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "L"}}
    ranks = folder(model_directory, tmp_path / "ranks", {"config.json": classifier})
    models = [model_status("tiny", model_directory), model_status("embeds", embeds), model_status("ranks", ranks)]
    answers = folder(model_directory, tmp_path / "answers", {"config.json": config})
    tokenizer = Tokenizer.from_file(str(answers / "tokenizer.json"))
    tokenizer.add_tokens(["yes", "no"])
    tokenizer.save(str(answers / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": SCORE_TEMPLATE}
    templated = folder(answers, tmp_path / "templated", {"tokenizer_config.json": settings})
    judges = [
        model_status("judge", answers),
        model_status("dumb", model_directory),
        model_status("templated", templated),
    ]
    for judge in judges:
        judge.spec.task, judge.footprint.max_model_len = "score", 1024
    peer = Pools(sockets, [*models, *judges], lambda submit, choice: [7])
    await peer.start()
    yield peer
    await peer.stop()


def unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return vector / np.linalg.norm(vector)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


async def embed(pool: Pool, **body: Any) -> tuple[int, dict[str, Any]]:
    status, answer, _ = await pool.post("/v1/embeddings", {"model": "embeds", **body})
    return status, answer


async def test_inputs_of_every_shape_are_embedded_in_their_order(pool: Pool) -> None:
    ids = [pool.tokenizer.encode(text).ids for text in ("the quick", "dogs")]
    for given, prompts in (("the quick", ids[:1]), (["the quick", "dogs"], ids), (ids[0], ids[:1]), (ids, ids)):
        status, answer = await embed(pool, input=given)
        assert status == 200, answer
        assert [one["index"] for one in answer["data"]] == list(range(len(prompts)))
        for one, prompt in zip(answer["data"], prompts, strict=True):
            assert np.allclose(one["embedding"], unit(vector_of(prompt)), atol=1e-6)
        count = sum(map(len, prompts))
        usage = {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count, "prompt_tokens_details": None}
        assert answer["usage"] == usage
        assert (answer["object"], answer["model"], answer["id"][:5]) == ("list", "embeds", "embd-")


async def test_priorities_of_prompts_reach_the_scheduler(pool: Pool) -> None:
    await embed(pool, input=["the quick", "dogs"], priority=-3)
    await embed(pool, input="dogs")
    with_one_number(pool)
    await pool.post("/rerank", {"model": "ranks", "query": "fox", "documents": ["dogs"], "priority": 4})
    assert [submit.priority for submit in pool.peer.submits] == [-3, -3, 0, 4]


async def test_base64_dimensions_and_the_raw_state(pool: Pool) -> None:
    raw = vector_of(pool.tokenizer.encode("dogs").ids)
    _, answer = await embed(pool, input="dogs", encoding_format="base64", user="me")
    encoded = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), dtype="<f4")
    assert np.allclose(encoded, unit(raw), atol=1e-6)
    _, answer = await embed(pool, input="dogs", use_activation=False)
    assert np.allclose(answer["data"][0]["embedding"], raw)
    _, answer = await embed(pool, input="dogs", dimensions=DIMENSIONS)
    assert np.allclose(answer["data"][0]["embedding"], unit(raw), atol=1e-6)
    status, answer = await embed(pool, input="dogs", dimensions=4)
    assert (status, answer["error"]["param"]) == (400, "dimensions")
    pool.peer.models[1].spec.matryoshka = True
    pool.peer.publish(pool.peer.models)
    await pool.until_models(lambda models: models["embeds"].spec.matryoshka)
    _, answer = await embed(pool, input="dogs", dimensions=4)
    assert np.allclose(answer["data"][0]["embedding"], unit(raw[:4]), atol=1e-6)
    status, answer = await embed(pool, input="dogs", dimensions=9)
    assert status == 400


async def test_more_prompts_than_are_asked_for_at_a_time_all_come(pool: Pool) -> None:
    texts = [f"text {number}" for number in range(150)]
    status, answer = await embed(pool, input=texts)
    assert status == 200
    for one, text in zip(answer["data"], texts, strict=True):
        assert np.allclose(one["embedding"], unit(vector_of(pool.tokenizer.encode(text).ids)), atol=1e-6)
    page = await pool.metrics()
    assert 'aegaeon_gateway_ttft_seconds_count{model="embeds"} 150.0' in page
    assert 'aegaeon_gateway_requests_total{model="embeds",outcome="ok"} 1.0' in page
    assert f'kind="prompt",model="embeds",tenant=""}} {float(answer["usage"]["prompt_tokens"])}' in page


async def test_operators_see_tokens_and_times_in_access_log_and_trace(
    start_gateway: StartGateway, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    async with otlp_receiver() as receiver:
        settings = {"access_log": True, "otlp_endpoint": receiver.endpoint, "trace_ratio": 1.0}
        async with start_gateway(**settings) as pool:
            _, answer = await embed(pool, input=["the quick", "dogs"])
        span = attributes(receiver.one("embeddings embeds").attributes)
    [line] = map(json.loads, capsysbinary.readouterr().out.splitlines())
    tokens = answer["usage"]["prompt_tokens"]
    assert (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"]) == (tokens, 0, 0)
    assert (line["model"], line["outcome"], line["finish_reasons"]) == ("embeds", "ok", ["stop"])
    assert 0 < line["first_s"] == line["total_s"] <= line["seconds"]
    assert (span["gen_ai.usage.input_tokens"], span["gen_ai.usage.output_tokens"]) == (tokens, 0)
    assert span["gen_ai.response.finish_reasons"] == ["stop"]
    assert span["aegaeon.total_s"] > 0


async def test_a_lost_prompt_is_asked_for_again(pool: Pool) -> None:
    pool.peer.lose_after = [0, 0]
    status, answer = await embed(pool, input=["the quick", "dogs"])
    assert status == 200
    assert np.allclose(answer["data"][1]["embedding"], unit(vector_of(pool.tokenizer.encode("dogs").ids)), atol=1e-6)
    assert max(submit.choices[0].epoch for submit in pool.peer.submits) > 1


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
async def test_documents_come_best_first(pool: Pool, path: str) -> None:
    """A classifier gets query and document as the tokenizer joins them, and its logit is squashed."""
    with_one_number(pool)
    documents = ["dogs", "the quick fox", "tokens"]
    body = {"model": "ranks", "query": "fox", "documents": documents, "top_n": 2}
    status, answer, _ = await pool.post(path, body)
    assert status == 200, answer
    said = [sigmoid(vector_of(pool.tokenizer.encode("fox", text).ids)[0]) for text in documents]
    order = sorted(range(3), key=lambda number: -said[number])[:2]
    assert [one["index"] for one in answer["results"]] == order
    assert [one["document"] for one in answer["results"]] == [
        {"text": documents[number], "multi_modal": None} for number in order
    ]
    assert [one["relevance_score"] for one in answer["results"]] == pytest.approx([said[number] for number in order])
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 0
    _, answer, _ = await pool.post(path, {**body, "return_documents": False})
    assert [set(one) for one in answer["results"]] == [{"index", "relevance_score"}] * 2


async def test_pairs_are_scored_one_with_many_or_as_many_with_as_many(pool: Pool) -> None:
    with_one_number(pool)
    for names in (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
        body = {"model": "ranks", names[0]: "a", names[1]: ["b", "c"]}
        status, answer, _ = await pool.post("/score", body)
        assert status == 200, answer
        expected = [sigmoid(vector_of(pool.tokenizer.encode("a", other).ids)[0]) for other in "bc"]
        assert [one["score"] for one in answer["data"]] == pytest.approx(expected)
    raw = {"model": "ranks", "text_1": ["a", "b"], "text_2": ["c", "d"], "use_activation": False}
    _, answer, _ = await pool.post("/v1/score", raw)
    expected = [float(vector_of(pool.tokenizer.encode(*pair).ids)[0]) for pair in ("ac", "bd")]
    assert [one["score"] for one in answer["data"]] == pytest.approx(expected)
    for wrong in (
        {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]},
        {"text_1": "a"},
        {"text_1": "a", "documents": "b"},
    ):
        status, answer, _ = await pool.post("/score", {"model": "ranks", **wrong})
        assert status == 400, answer


async def test_embeddings_are_compared_by_their_cosine(pool: Pool) -> None:
    body = {"model": "embeds", "text_1": "a", "text_2": ["b", "a"]}
    _, answer, _ = await pool.post("/score", body)
    one, other = (unit(vector_of(pool.tokenizer.encode(text).ids)) for text in "ab")
    assert [each["score"] for each in answer["data"]] == pytest.approx([float(one @ other), 1.0], abs=1e-5)


async def test_a_decoder_is_asked_for_yes_or_no(pool: Pool, tmp_path: Path) -> None:
    body = {"model": "judge", "query": "fox", "documents": ["dogs", "the fox"], "instruction": "find foxes"}
    _, answer, _ = await pool.post("/rerank", body)
    tokenizer = Tokenizer.from_file(str(tmp_path / "answers" / "tokenizer.json"))
    submits = {tokenizer.decode(list(submit.prompt), skip_special_tokens=False): submit for submit in pool.peer.submits}
    for document in ("dogs", "the fox"):
        [asked] = [text for text in submits if f"<Query>: fox\n<Document>: {document}<|im_end|>" in text]
        assert "<Instruct>: find foxes\n" in asked
        assert asked.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
        names = [tokenizer.id_to_token(token) for token in submits[asked].pooling.logits_of]
        assert names == ["no", "yes"]
        no, yes = vector_of(list(submits[asked].prompt))[:2]
        [got] = [one for one in answer["results"] if one["document"]["text"] == document]
        assert got["relevance_score"] == pytest.approx(math.exp(yes) / (math.exp(yes) + math.exp(no)))


async def test_a_template_that_knows_of_queries_and_documents_is_used(pool: Pool, tmp_path: Path) -> None:
    body = {"model": "templated", "text_1": "fox", "text_2": "dogs"}
    for more, first in (({}, "judge"), ({"instruction": "find"}, "find")):
        status, answer, _ = await pool.post("/score", body | more)
        assert status == 200, answer
        tokenizer = Tokenizer.from_file(str(tmp_path / "answers" / "tokenizer.json"))
        text = tokenizer.decode(list(pool.peer.submits[-1].prompt), skip_special_tokens=False)
        assert text == f"{first}<|query|>fox<|document|>dogs"


async def test_a_judge_without_single_tokens_for_its_answers_is_refused(pool: Pool) -> None:
    status, answer, _ = await pool.post("/score", {"model": "dumb", "text_1": "a", "text_2": "b"})
    assert status == 400
    assert "yes and no" in answer["error"]["message"]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "/v1/chat/completions",
        {"model": "embeds", "messages": [{"role": "user", "content": "hi"}]},
        "/v1/embeddings",
    ),
    ("/v1/completions", {"model": "ranks", "prompt": "hi"}, "/v1/rerank"),
    ("/v1/embeddings", {"model": "tiny", "input": "hi"}, "generates text"),
    ("/v1/embeddings", {"model": "ranks", "input": "hi"}, "scores documents"),
    ("/rerank", {"model": "tiny", "query": "hi", "documents": ["hi"]}, "generates text"),
    ("/v1/embeddings", {"model": "embeds", "input": []}, "input"),
    ("/v1/embeddings", {"model": "embeds", "input": ["a", 3]}, "input"),
    ("/v1/embeddings", {"model": "embeds", "input": [[]]}, "input"),
    ("/v1/embeddings", {"model": "embeds", "input": [99999]}, "vocabulary"),
    ("/v1/embeddings", {"model": "embeds", "input": "a " * 400}, "maximum context length is 256"),
    ("/v1/embeddings", {"model": "embeds", "input": "a", "encoding_format": "bytes"}, "encoding_format"),
    ("/v1/embeddings", {"model": "embeds", "input": "a", "priority": 0.5}, "priority"),
    ("/v1/embeddings", {"model": "embeds", "input": "a", "temperature": 1}, "temperature"),
    ("/v1/embeddings", {"model": "embeds", "input": "a", "messages": [{}]}, "messages is not supported here: texts"),
    ("/rerank", {"model": "ranks", "query": "a", "documents": []}, "documents"),
    ("/rerank", {"model": "ranks", "query": "a", "documents": "b", "instruction": "c"}, "roles query and document"),
]


@STRICT
async def test_what_a_model_is_not_for_is_refused_by_a_sentence(pool: Pool) -> None:
    for path, body, said in REFUSED:
        status, answer, _ = await pool.post(path, body)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error"), answer
        assert said in answer["error"]["message"], body
    assert not pool.peer.submits


async def test_prompts_are_cut_where_that_is_asked_for(pool: Pool) -> None:
    ids = list(range(10, 40))
    await embed(pool, input=ids, truncate_prompt_tokens=5)
    await embed(pool, input=ids, truncate_prompt_tokens=5, truncation_side="left")
    status, _ = await embed(pool, input=ids * 20, truncate_prompt_tokens=-1)
    assert status == 200
    prompts = [list(submit.prompt) for submit in pool.peer.submits]
    assert prompts == [ids[:5], ids[-5:], (ids * 20)[:256]]
    with_one_number(pool)
    body = {"model": "ranks", "query": "fox", "documents": "one two three four", "max_tokens_per_doc": 1}
    status, answer, _ = await pool.post("/rerank", body)
    assert status == 200
    assert "one two three four".startswith(answer["results"][0]["document"]["text"])
    assert len(answer["results"][0]["document"]["text"]) < 5


async def test_models_say_what_they_are_for(pool: Pool) -> None:
    pool.peer.models[1].footprint.task = "embed"
    pool.peer.publish(pool.peer.models)
    await pool.until_models(lambda models: models["embeds"].footprint.task == "embed")
    async with pool.http.get(f"{pool.url}/v1/models") as response:
        tasks = {model["id"]: model["aegaeon"]["task"] for model in (await response.json())["data"]}
    assert (tasks["embeds"], tasks["judge"], tasks["tiny"]) == ("embed", "score", None)


def test_every_body_of_the_table_is_prepared_and_answered() -> None:
    assert set(PREPARE) == set(BODIES) == {name for name, endpoint in ENDPOINTS.items() if endpoint.vectors}
    for name, body in BODIES.items():
        assert (ENDPOINTS[name].param, ENDPOINTS[name].prompts) == (body.param, body.prompts)
        assert body.kind in KNOWN
        assert body.kind in OPEN
