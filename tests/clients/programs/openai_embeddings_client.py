"""The official client's embeddings: one text, many, token ids, floats, base64, fewer dimensions, too many."""

import base64
import math
import struct
import sys

import openai

URL = sys.argv[1]

client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
one = client.embeddings.create(model="embed", input="a text")
many = client.embeddings.create(model="embed", input=["a text", "another"], encoding_format="float", user="me")
assert [row.index for row in many.data] == [0, 1], many
assert many.usage.prompt_tokens > one.usage.prompt_tokens > 0
for mine, other in zip(one.data[0].embedding, many.data[0].embedding, strict=True):
    assert math.isclose(mine, other, abs_tol=1e-6)
short = client.embeddings.create(model="embed", input="a text", dimensions=8).data[0].embedding
assert len(short) == 8
assert math.isclose(math.hypot(*short), 1.0, abs_tol=1e-5)
raw = client.embeddings.create(model="embed", input="a text", encoding_format="base64").data[0].embedding
packed = struct.unpack(f"<{len(one.data[0].embedding)}f", base64.b64decode(raw))
for mine, other in zip(packed, one.data[0].embedding, strict=True):
    assert math.isclose(mine, other, abs_tol=1e-6)
ids = client.embeddings.create(model="embed", input=[[5, 6, 7], [8]])
assert ids.usage.prompt_tokens >= 4, ids.usage
refused = None
try:
    client.embeddings.create(model="embed", input="a text", dimensions=10_000)
except openai.BadRequestError as error:
    refused = error.param
assert refused == "dimensions", refused
assert "embed" in {model.id for model in client.models.list()}
