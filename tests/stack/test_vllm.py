"""A whole stack whose engines compute with vLLM (`make test-vllm`): what is killed under load costs no token, models
and adapters come and go while others serve, and files that cannot be served fail their own model."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import openai
import pytest
from backend_vllm.adapters import make_adapter
from stack.launch import CONTEXT, manifests, running
from stack.test_apply import apply, until
from stack.test_faults import Trigger
from stack.traffic import PROMPTS, stream, until_empty

from aegaeon_cli.demo.stack import Stack
from aegaeon_cli.status import watch_status
from aegaeon_proto.channels import open_channel
from aegaeon_proto.roles import Role
from aegaeon_proto.v1 import admin_pb2, admin_pb2_grpc

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM, in an environment of its own: make test-vllm"),
]
SHAPE = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
WINDOW = {"sliding_window": 64}
# Placed by a plan, the last one baked; two of them with windows, shorter than a sequence.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": WINDOW | {"query_pre_attn_scalar": 32},
    "gpt_oss": WINDOW | {"num_local_experts": 4, "num_experts_per_tok": 2},
}
ADDED = {"mixtral": {"num_local_experts": 4, "sliding_window": None}}  # baked while the others decode
BASE, ADAPTERS = "llama", ("poet", "lawyer")
# By model that must fail: what is done to a copy of the base's files, and what the reason says.
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (lambda folder: _edit(folder / "model.safetensors", lambda data: data[:-1000]), "truncated"),
    "renamed": (lambda folder: _edit(folder / "model.safetensors", _rename), "no module or parameter named"),
    "mismatched": (lambda folder: _configure(folder, intermediate_size=256), "are not what config.json says"),
    "requantised": (lambda folder: _configure(folder, quantization_config=GPTQ), "Supported dtypes"),
    "own-code": (lambda folder: _configure(folder, **OWN_CODE), "code of the model's own (auto_map)"),
    "foreign-tokenizer": (lambda folder: _edit(folder / "tokenizer.json", _enlarge), "it is of another model"),
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
OWN_CODE = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}
JOBS = [(model, prompt) for model in (*MODELS, *ADAPTERS) for prompt in PROMPTS]
TOKENS = 80  # of an answer
ENGINES = 2
START_S = 120  # for an engine to import vLLM again, on a machine that is busy with much else


@pytest.fixture(scope="module")
def models(make_model: Callable[..., Path]) -> dict[str, Path]:
    shape = SHAPE | {"max_position_embeddings": CONTEXT}
    return {name: make_model(name, **shape | settings) for name, settings in (MODELS | ADDED).items()}


@pytest.fixture(scope="module")
def adapters(
    models: dict[str, Path], make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Of the base; `stranger` is one of another model, whose layers have other shapes."""
    root = tmp_path_factory.mktemp("adapters")
    made = {name: make_adapter(models[BASE], root / name, seed=at) for at, name in enumerate((*ADAPTERS, "judge"))}
    return made | {"stranger": make_adapter(make_model("llama"), root / "stranger", seed=9)}


def _edit(file: Path, change: Callable[[bytes], bytes]) -> None:
    file.write_bytes(change(file.read_bytes()))


def _rename(data: bytes) -> bytes:
    return data.replace(b"q_proj", b"p_proj")  # of the same length: nothing moves


def _configure(folder: Path, **fields: Any) -> None:
    _edit(folder / "config.json", lambda data: json.dumps(json.loads(data) | fields).encode())


def _enlarge(data: bytes) -> bytes:
    tokenizer = json.loads(data)
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"<{token}>": token for token in range(len(vocabulary), 1000)}
    return json.dumps(tokenizer).encode()


@pytest.fixture(scope="module")
def broken(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("broken")
    folders = {name: Path(shutil.copytree(models[BASE], root / name)) for name in BROKEN}
    for name, (damage, _) in BROKEN.items():
        damage(folders[name])
    return folders


@pytest.fixture(scope="module")
def stack(models: dict[str, Path], broken: dict[str, Path], adapters: dict[str, Path]) -> Iterator[Stack]:
    """Device memory of an engine holds the largest model and some KV cache, or two of the others."""
    some = {name: adapters[name] for name in ADAPTERS}
    with running(of(models | broken, *MODELS, *broken, adapters=some)) as up:
        yield up


def of(models: dict[str, Path], *names: str, adapters: Mapping[str, Path]) -> str:
    """With these adapters of the base, for which engines reserve memory whether there are any or not."""
    served = {name: models[name] for name in names}
    return manifests(served, engines=ENGINES, device="7Mi", backend="vllm", adapters={BASE: adapters})


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """The answer to each job when it runs alone; the first test of the file fills it."""
    return []


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("victims", "after"), [(["engine-0"], 1), (["scheduler", "engine-1"], 150)])
async def test_every_client_gets_its_complete_output_when_processes_are_killed(
    stack: Stack, client: Any, alone: list[str], victims: list[str], after: int
) -> None:
    await until_attached(stack)
    if not alone:
        alone += [await stream(client, *job, tokens=TOKENS) for job in JOBS]
    kill = Trigger(after, lambda: [stack.kill(victim) for victim in victims])
    answers = await asyncio.gather(*(stream(client, *job, kill, TOKENS) for job in JOBS))
    assert kill.fired
    assert answers == alone
    await until_empty(stack)


@pytest.mark.timeout(400)
async def test_files_that_cannot_be_served_fail_their_model_with_one_sentence_in_every_view(
    stack: Stack, client: Any
) -> None:
    """The others are served beside them: their answers are those of the test above."""
    with pytest.raises(openai.InternalServerError):  # a gateway reads a tokenizer when a request comes
        await stream(client, "foreign-tokenizer", PROMPTS[0])
    for name, (_, why) in BROKEN.items():
        reason = await until_failed(stack, client, name, why)
        assert "\n" not in reason


@pytest.mark.timeout(400)
async def test_adapters_are_added_and_removed_during_a_stream_and_one_of_another_base_fails_alone(
    stack: Stack, client: Any, alone: list[str], models: dict[str, Path], adapters: dict[str, Path], tmp_path: Path
) -> None:
    job = ("poet", PROMPTS[0])
    expected = alone[JOBS.index(job)]
    assert expected != alone[JOBS.index((BASE, PROMPTS[0]))]
    streaming = asyncio.create_task(stream(client, *job, tokens=TOKENS))
    some = {name: adapters[name] for name in ("poet", "judge", "stranger")}
    status, printed = await asyncio.to_thread(apply, stack, tmp_path, of(models, *MODELS, adapters=some))
    assert status == 0, printed
    await until(client, *MODELS, *some)
    answer = await stream(client, "judge", PROMPTS[0], tokens=TOKENS)
    assert await streaming == expected
    with pytest.raises(openai.NotFoundError):
        await stream(client, "lawyer", PROMPTS[0], tokens=TOKENS)
    await until_failed(stack, client, "stranger", "it is an adapter of another base model")
    together = [stream(client, name, PROMPTS[0], tokens=TOKENS) for name in ("judge", "poet", BASE)]
    assert await asyncio.gather(*together) == [answer, expected, alone[JOBS.index((BASE, PROMPTS[0]))]]
    await until_empty(stack)


async def until_failed(stack: Stack, client: Any, name: str, why: str) -> str:
    """Until /v1/models shows the reason; then status and a request for it show the same: 404 for a kind of model that
    the engine cannot run, 503 for other files."""
    async with asyncio.timeout(30):
        while (state := (await client.models.retrieve(name)).aegaeon)["phase"] != "failed":  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
    assert why in state["reason"]
    assert state["reason"] in (await status_reasons(stack))[name]
    with pytest.raises((openai.InternalServerError, openai.NotFoundError), match=re.escape(why)):
        await stream(client, name, PROMPTS[0])
    return str(state["reason"])


async def status_reasons(stack: Stack) -> dict[str, str]:
    """By model and adapter, as the status of a ModelPool has them."""
    async with open_channel(stack.state.admin, None, Role.SCHEDULER) as channel:
        admin: admin_pb2_grpc.AdminAsyncStub = admin_pb2_grpc.AdminStub(channel)
        status = await admin.Status(admin_pb2.AdminStatusRequest())
    return {one.spec.name: one.reason for one in (*status.catalog.models, *status.pool.adapters)}


@pytest.mark.timeout(400)
async def test_a_model_is_added_and_one_removed_during_a_stream(
    stack: Stack, client: Any, alone: list[str], models: dict[str, Path], tmp_path: Path
) -> None:
    """The one that is removed takes its adapters with it."""
    job = ("gemma2", PROMPTS[0])
    streaming = asyncio.create_task(stream(client, *job, tokens=TOKENS))
    status, printed = await asyncio.to_thread(
        apply, stack, tmp_path, of(models, "gemma2", "gpt_oss", "mixtral", adapters={})
    )
    assert status == 0, printed
    await until(client, "gemma2", "gpt_oss", "mixtral")
    answer = await stream(client, "mixtral", PROMPTS[0], tokens=TOKENS)
    assert await streaming == alone[JOBS.index(job)]
    both = stream(client, *job, tokens=TOKENS), stream(client, "mixtral", PROMPTS[0], tokens=TOKENS)
    assert await asyncio.gather(*both) == [alone[JOBS.index(job)], answer]
    await until_empty(stack)


async def until_attached(stack: Stack) -> None:
    """Both engines: one that was killed takes its time to import vLLM again."""
    async with asyncio.timeout(START_S):
        async for status in watch_status(stack.state.scheduler, 0.1):
            if sum(engine.alive for engine in status.instances) == ENGINES:
                return
