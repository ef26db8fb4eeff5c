"""Attacks by a ModelPool: files of a model and addresses of sources that a tenant wrote.

A `*_models` function writes the files and says what the ModelPool names; the operator gives it to the scheduler. The
attack itself then asks for those models, or plays the server that they are fetched from.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from attacks.stranger import COMPLETIONS, Stranger, chat

from aegaeon_proto.v1.model_pb2 import HttpSource, HubSource, ModelSource, S3Source

Sources = dict[str, ModelSource]
BACKTRACKS = "a" * 30 + "!"
GB = 10**9


def _copy(good: Path, folder: Path, name: str) -> Path:
    made = folder / name
    shutil.copytree(good, made)
    for file in made.iterdir():
        file.chmod(0o644)
    return made


def _edited(good: Path, folder: Path, name: str, file: str, edit: Callable[[Any], object]) -> Sources:
    """A copy whose JSON file is changed."""
    made = _copy(good, folder, name)
    data = json.loads((made / file).read_text())
    edit(data)
    (made / file).write_text(json.dumps(data))
    return {name: ModelSource(directory=str(made))}


def _with_template(template: str) -> Callable[[Path, Path, int], Sources]:
    def write(good: Path, folder: Path, web: int) -> Sources:
        del web
        name = f"template-{abs(hash(template)) % 10**6}"
        return _edited(good, folder, name, "tokenizer_config.json", lambda c: c.update(chat_template=template))

    return write


big_template_models = _with_template("{{ 'a' * 10**9 }}")
looping_template_models = _with_template(
    "{% for a in range(10**5) %}{% for b in range(10**5) %}{% endfor %}{% endfor %}x"
)


def backtracking_tokenizer_models(good: Path, folder: Path, web: int) -> Sources:
    del web
    split = {"type": "Split", "pattern": {"Regex": "(a|a|aa)+$"}, "behavior": "Isolated", "invert": False}

    def edit(tokenizer: dict[str, Any]) -> None:
        before = tokenizer["pre_tokenizer"]
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, before]}

    return _edited(good, folder, "backtracking", "tokenizer.json", edit)


def big_tokenizer_models(good: Path, folder: Path, web: int) -> Sources:
    del web

    def edit(tokenizer: dict[str, Any]) -> None:
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary.update({f"never-{i}": len(vocabulary) + i for i in range(1_500_000)})

    return _edited(good, folder, "big-tokenizer", "tokenizer.json", edit)


def odd_texts_models(good: Path, folder: Path, web: int) -> Sources:
    """Files about text that are not what they should be, one wrong in each."""
    del web
    found: Sources = {}
    wrongs: tuple[tuple[str, str, Any], ...] = (
        ("huge-top-k", "generation_config.json", {"top_k": 10**400}),
        ("nan-temperature", "generation_config.json", {"temperature": float("nan"), "top_p": -5}),
        ("eos-text", "generation_config.json", {"eos_token_id": ["a", 2.5, None]}),
        ("eos-huge", "generation_config.json", {"eos_token_id": 2**70}),
        ("list-config", "tokenizer_config.json", {"chat_template": [{"name": "x", "template": "{{"}]}),
        (
            "endless-raise",
            "tokenizer_config.json",
            {"chat_template": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"},
        ),
    )
    for name, file, changes in wrongs:
        found |= _edited(good, folder, name, file, lambda data, changes=changes: data.update(changes))
    garbage = _copy(good, folder, "garbage-tokenizer")
    (garbage / "tokenizer.json").write_bytes(b"{" * 100_000)
    nested = _copy(good, folder, "nested-generation")
    (nested / "generation_config.json").write_text("[" * 100_000)
    digits = _copy(good, folder, "digits-generation")
    (digits / "generation_config.json").write_text('{"top_k": ' + "9" * 10_000 + "}")
    return found | {path.name: ModelSource(directory=str(path)) for path in (garbage, nested, digits)}


def bad_weights_models(good: Path, folder: Path, web: int) -> Sources:
    """Truncated, not numbers, no memory on earth for them, a header of 4 GB."""
    del web
    cut = _copy(good, folder, "truncated")
    with (cut / "model.safetensors").open("r+b") as file:
        file.truncate(1_000_000)
    nan = _copy(good, folder, "nan-weights")
    _fill(nan / "model.safetensors", np.float32(np.nan))
    header = _copy(good, folder, "huge-header")
    (header / "model.safetensors").write_bytes((4 << 30).to_bytes(8, "little") + b"{}")
    found = {path.name: ModelSource(directory=str(path)) for path in (cut, nan, header)}
    huge = {"num_hidden_layers": 4096, "hidden_size": 2**30, "vocab_size": 2**31 - 1}
    found |= _edited(good, folder, "huge-config", "config.json", lambda config: config.update(huge))
    return found | _edited(
        good, folder, "huge-context", "config.json", lambda c: c.update(max_position_embeddings=2**31 - 1)
    )


def changing_models(good: Path, folder: Path, web: int) -> Sources:
    del web
    return {"changing": ModelSource(directory=str(_copy(good, folder, "changing")))}


def _fill(file: Path, value: np.float32) -> None:
    """Every weight, in place: the header stays."""
    with file.open("r+b") as weights:
        start = 8 + int.from_bytes(weights.read(8), "little")
        weights.seek(0, 2)
        count = (weights.tell() - start) // 4
        weights.seek(start)
        weights.write(np.full(count, value, np.float32).tobytes())


def bad_address_models(good: Path, folder: Path, web: int) -> Sources:
    """URLs that are none, and tokens that are no header."""
    del good, web
    token = folder / "two-lines"
    token.write_text("a-secret\r\nX-Injected: yes")
    latin = folder / "latin"
    latin.write_bytes("schlüssel\n".encode())
    sources = {
        "bad-bracket": HttpSource(url="http://[bad/m1"),
        "bad-letters": HttpSource(url="http://127.0.0.1:9/ü/m1"),
        "bad-blank": HttpSource(url="http://127.0.0.1:9/a b\r\nX: y"),
        "bad-port": HttpSource(url="http://127.0.0.1:99999/m"),
        "bad-idna": HttpSource(url="http://" + "a" * 300 + ".example/m"),
        "bad-scheme": HttpSource(url="file:///etc/passwd"),
        "two-lines": HttpSource(url="http://127.0.0.1:9/m", credentials_file=str(token)),
        "latin": HttpSource(url="http://127.0.0.1:9/m", credentials_file=str(latin)),
        "others-file": HttpSource(url="http://127.0.0.1:9/m", credentials_file="/proc/self/environ"),
    }
    found = {name: ModelSource(http=source) for name, source in sources.items()}
    found["bad-bucket"] = ModelSource(s3=S3Source(bucket="../..", endpoint="http://[bad"))
    found["bad-repository"] = ModelSource(hub=HubSource(repository="../../etc", revision="\0"))
    return found


def _from_server(*paths: str) -> Callable[[Path, Path, int], Sources]:
    def write(good: Path, folder: Path, web: int) -> Sources:
        del good, folder
        return {path: ModelSource(http=HttpSource(url=f"http://127.0.0.1:{web}/{path}")) for path in paths}

    return write


dripping_models = _from_server("drip-1", "drip-2", "drip-3", "drip-4")
endless_models = _from_server("endless-config", "endless-weights")
redirecting_models = _from_server("to-link-local", "to-file", "to-itself", "to-scheduler")


async def ask_hostile(one: Stranger) -> None:
    """Chats with each hostile model, one after the other."""
    await one.ready()
    await _ask(one)


async def _ask(one: Stranger) -> None:
    for name in one.cycle(one.target.hostile):
        await one.post(chat(name))
        await one.post({"model": name, "prompt": BACKTRACKS, "max_tokens": 4}, COMPLETIONS)
        await one.pause(10)


async def change_files(one: Stranger) -> None:
    """Weights zeroed, made no numbers, cut and put back while the model is asked for."""
    model = Path(one.target.folder) / "changing"
    whole = (model / "model.safetensors").read_bytes()

    async def change() -> None:
        while one.going:
            for value in (0.0, np.nan, 1e38):
                _fill(model / "model.safetensors", np.float32(value))
                await one.pause(25)
            with (model / "model.safetensors").open("r+b") as file:
                file.truncate(1000)
            await one.pause(25)
            (model / "model.safetensors").write_bytes(whole)
            (model / "tokenizer.json").write_text("{}")
            await one.pause(25)

    await one.ready()
    await asyncio.gather(change(), _ask(one))


async def play_server(one: Stranger) -> None:
    """Serve what drips, never ends or sends elsewhere, and ask for those models meanwhile."""
    server = await asyncio.start_server(lambda r, w: _serve(one, r, w), "127.0.0.1", one.target.web)
    await one.ready()
    async with server:
        await _ask(one)


async def _serve(one: Stranger, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split(" ", 2)
        one.answers[f"served {path.split('/')[1]}"] += 1
        await _answer(one, method, path, writer)
    writer.close()


async def _answer(one: Stranger, method: str, path: str, writer: asyncio.StreamWriter) -> None:
    name = path.rpartition("/")[2]
    if "to-" in path:
        place = {
            "to-link-local": "http://169.254.169.254/latest/meta-data/",
            "to-file": "file:///etc/passwd",
            "to-itself": path,
            "to-scheduler": f"http://127.0.0.1:{one.target.grpc[0]}/",
        }[path.split("/")[1]]
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode())
        return
    if name not in ("config.json", "model.safetensors"):
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        return
    if "drip" in path:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n")
        while one.going and method != "HEAD":
            writer.write(b" ")
            await one.pause(10)
        return
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")  # no length: to the connection's end
    if name == "config.json" and "weights" in path:
        writer.write(b"{}")
        return
    sent = 0
    while method != "HEAD" and one.going and sent < GB and not writer.is_closing():
        writer.write(b" " * (1 << 18))
        sent += 1 << 18
        await writer.drain()
        await asyncio.sleep(0.01)
