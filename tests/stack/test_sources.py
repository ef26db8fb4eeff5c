"""Models from a directory, an S3 store and a web server give the same tokens: real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_servers import QuietHandler, s3_server, serving
from stack.launch import CONTEXT, manifests, running

from aegaeon_cli.demo import clients

TOKEN = "a-secret"


class Guarded(QuietHandler, SimpleHTTPRequestHandler):
    """A folder for those who know the token."""

    def send_head(self) -> Any:
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return super().send_head()
        self.send_error(401)
        return None


@pytest.fixture
def web(model: Path) -> Iterator[str]:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), partial(Guarded, directory=str(model)))) as address:
        yield f"http://{address}"


@pytest.fixture
def store(model: Path) -> Iterator[str]:
    """An S3 store, a process of its own, with the model below models/qwen."""
    boto3 = pytest.importorskip("boto3", reason="needs boto3")
    from botocore.config import Config

    with s3_server() as address:
        direct = Config(proxies={})  # whatever the environment has
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
        client = boto3.client("s3", endpoint_url=address, config=direct, **keys)
        client.create_bucket(Bucket="models")
        for file in model.iterdir():
            client.upload_file(str(file), "models", f"qwen/{file.name}")
        yield address


@pytest.fixture
def model(make_model: Callable[..., Path]) -> Path:
    return make_model("qwen2", max_position_embeddings=CONTEXT)


def test_the_same_files_answer_alike_wherever_they_come_from(
    model: Path, web: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    keys, token = tmp_path / "keys", tmp_path / "token"
    keys.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    token.write_text(TOKEN + "\n")
    pool, models = yaml.safe_load_all(manifests({"local": model}, engines=1, hold="100s"))
    pool["spec"]["memory"] |= {
        "disk": {"path": str(tmp_path / "disk"), "size": "64Mi"},
        "stage": {"chunk": "1Mi", "depth": 2},
    }
    s3 = {"bucket": "models", "prefix": "qwen", "endpoint": store, "credentialsFile": str(keys)}
    for name, source in (("store", {"s3": s3}), ("web", {"http": {"url": web, "credentialsFile": str(token)}})):
        models["spec"]["models"].append({"name": name, "source": source})
    with running(yaml.safe_dump_all([pool, models])) as stack, clients.client(stack.state.url, timeout=110) as client:
        answers = {
            name: client.completions.create(model=name, prompt="Once upon a time", max_tokens=20, temperature=0)
            for name in ("local", "store", "web")
        }
    texts = {name: answer.choices[0].text for name, answer in answers.items()}
    assert texts == dict.fromkeys(texts, texts["local"])
    assert all(answer.usage.completion_tokens == 20 for answer in answers.values() if answer.usage)
    assert sorted(path.name for path in (tmp_path / "disk").glob("*/model.safetensors")) == ["model.safetensors"] * 2
