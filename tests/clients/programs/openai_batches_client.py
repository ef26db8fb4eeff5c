"""The official client's files and batches: a batch for each endpoint, answered as online, and one that fails."""

import io
import json
import sys
import time

import openai

URL, MODEL = sys.argv[1:]
HELLO = "Say hello."
LEARNT = f"<|begin|><|user|>{HELLO}<|end|><|assistant|>"
ASK = {"model": MODEL, "temperature": 0}
SAID = "Hello to you."
OVER = {"completed", "failed", "expired", "cancelled"}

client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)


def started(endpoint: str, bodies: list[dict[str, object]]) -> openai.types.Batch:
    """A batch with a line for each body."""
    lines = [{"custom_id": str(n), "method": "POST", "url": endpoint, "body": body} for n, body in enumerate(bodies)]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=("night.jsonl", io.BytesIO(content)), purpose="batch")
    assert client.files.content(file.id).read() == content
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"for": endpoint}
    )


def ended(batch: openai.types.Batch) -> openai.types.Batch:
    """The batch when it is over."""
    while (batch := client.batches.retrieve(batch.id)).status not in OVER:
        time.sleep(0.2)  # as clients do: the API of batches has nothing to wait on
    return batch


def answers(batch: openai.types.Batch) -> list[dict[str, object]]:
    """Of a batch whose lines were all answered, in the order of its lines."""
    batch = ended(batch)
    assert (batch.status, batch.error_file_id) == ("completed", None), batch
    assert batch.request_counts.completed == batch.request_counts.total > 0, batch
    lines = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert all(line["response"]["status_code"] == 200 and line["error"] is None for line in lines), lines
    return [line["response"]["body"] for line in sorted(lines, key=lambda line: int(line["custom_id"]))]


chats = started("/v1/chat/completions", [{**ASK, "messages": [{"role": "user", "content": HELLO}]}] * 2)
texts = started("/v1/completions", [{**ASK, "prompt": LEARNT}])
vectors = started("/v1/embeddings", [{"model": "embed", "input": text} for text in ("a text", ["another", "third"])])
responses = started("/v1/responses", [{**ASK, "input": HELLO}])
for answer in answers(chats):
    assert openai.types.chat.ChatCompletion.model_validate(answer).choices[0].message.content == SAID, answer
[answer] = answers(texts)
assert answer["choices"][0]["text"] == SAID, answer
[answer] = answers(responses)
assert openai.types.responses.Response.model_validate(answer).output_text == SAID, answer
one, two = (openai.types.CreateEmbeddingResponse.model_validate(answer) for answer in answers(vectors))
online = client.embeddings.create(model="embed", input=["a text", "another"], encoding_format="float")
for batched, other in zip((one.data[0], two.data[0]), online.data, strict=True):
    assert all(abs(a - b) < 1e-6 for a, b in zip(batched.embedding, other.embedding, strict=True))

wrong = ended(started("/v1/completions", [{**ASK, "prompt": HELLO, "suffix": "!"}]))
[error] = [json.loads(line) for line in client.files.content(wrong.error_file_id).text.splitlines()]
assert (error["response"]["status_code"], error["response"]["body"]["error"]["param"]) == (400, "suffix"), error
known = {batch.id: batch.metadata for batch in client.batches.list(limit=2)}  # all pages
assert known[vectors.id] == {"for": "/v1/embeddings"}, known
assert client.files.delete(ended(texts).output_file_id).deleted
