"""More models than the node's disk has room for, real processes: each is served, however slowly, and what is not asked
for costs the store no request."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_servers import QuietHandler, serving
from stack.launch import manifests, running

from aegaeon_cli.demo import clients

pytestmark = pytest.mark.slow

REQUESTS: Counter[str] = Counter()
"""to the store, by model"""


class Counting(QuietHandler, SimpleHTTPRequestHandler):
    def send_head(self) -> Any:
        REQUESTS[self.path.split("/")[1]] += 1
        return super().send_head()


@pytest.fixture
def store(four_models: dict[str, Path], tmp_path: Path) -> Iterator[str]:
    """A web server with the models in folders of their names."""
    REQUESTS.clear()
    for name, folder in four_models.items():
        shutil.copytree(folder, tmp_path / "web" / name)
    handler = partial(Counting, directory=str(tmp_path / "web"))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as address:
        yield f"http://{address}"


def test_four_models_on_a_disk_of_two_are_served_in_turn_and_idle_ones_ask_their_store_nothing(
    store: str, four_models: dict[str, Path], tmp_path: Path
) -> None:
    sizes = [sum(file.stat().st_size for file in folder.iterdir()) for folder in four_models.values()]
    pool, models = yaml.safe_load_all(manifests(four_models, engines=2, host_cache="64Ki", hold="60s"))
    pool["spec"]["memory"]["disk"] = {"path": str(tmp_path / "disk"), "size": f"{2 * max(sizes) // 1024 + 64}Ki"}
    pool["spec"]["allowedSources"] = ["127.0.0.0/8"]
    for model in models["spec"]["models"]:
        model["source"] = {"http": {"url": f"{store}/{model['name']}"}}
    with running(yaml.safe_dump_all([pool, models])) as stack, clients.client(stack.state.url, timeout=120) as client:
        phases = [one.aegaeon["phase"] for one in client.models.list()]
        assert phases.count("absent") >= 1
        assert "failed" not in phases
        before = REQUESTS.total()
        time.sleep(5.0)
        assert REQUESTS.total() == before
        answers: dict[str, set[str]] = {}
        for name in (*four_models, *four_models):
            answer = client.completions.create(model=name, prompt="Once upon a time", max_tokens=8, temperature=0)
            answers.setdefault(name, set()).add(answer.choices[0].text)
    assert all(len(texts) == 1 for texts in answers.values()), "the same bytes each time they were fetched"
