"""Tokenizers of several models load side by side, also in a process that has not imported transformers yet."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aegaeon_gateway.errors import TokenizerError
from aegaeon_gateway.prepare import prepare
from aegaeon_gateway.schema import CompletionRequest
from aegaeon_gateway.texts import Tokenizers
from aegaeon_proto.v1.gateway_pb2 import ModelStatus
from aegaeon_proto.v1.model_pb2 import ModelPhase, ModelSource, ModelSpec

PROGRAM = """
import asyncio, sys
from aegaeon_gateway.texts import Tokenizers
from aegaeon_proto.v1.model_pb2 import ModelPhase, ModelSource

async def main():
    tokenizers = Tokenizers(None)
    loads = (tokenizers.get(ModelSource(directory=folder)) for folder in sys.argv[1:])
    for text in await asyncio.gather(*loads):
        print(text.decode(await text.encode("quick fox", special=False)))

asyncio.run(main())
"""


def test_tokenizers_of_four_models_load_at_the_same_time(tiny_models: dict[str, Path]) -> None:
    folders = [str(path) for path in tiny_models.values()]
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, *folders], capture_output=True, text=True, timeout=100, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split("\n")[:-1] == ["quick fox"] * len(folders)


async def test_sampling_defaults_are_the_models_own_where_the_client_says_nothing(
    tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(tiny_models["llama"], tmp_path / "model"))
    (directory / "generation_config.json").write_text('{"temperature": 0.25, "top_k": 7, "top_p": null}')
    text = await Tokenizers(None).get(ModelSource(directory=str(directory)))
    status = ModelStatus(spec=ModelSpec(name="m", ttft_s=1, tbt_s=1))
    request = CompletionRequest.model_validate({"model": "m", "prompt": "x", "top_k": 3, "max_tokens": 4})
    sampling = (await prepare("r", request, status, text, 0.0)).jobs[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.25, 3, 1.0)


async def test_texts_of_a_model_that_failed_are_read_anew_when_it_is_back(
    tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(tiny_models["llama"], tmp_path / "model"))
    status = ModelStatus(spec=ModelSpec(name="m", source=ModelSource(directory=str(directory))))
    tokenizers, positions = Tokenizers(None), []
    for length, phase in ((100, ModelPhase.MODEL_PHASE_CACHED), (200, ModelPhase.MODEL_PHASE_FAILED)):
        (directory / "config.json").write_text(f'{{"max_position_embeddings": {length}}}')
        status.phase = phase
        tokenizers.keep([status])
        positions.append((await tokenizers.get(status.spec.source)).max_positions)
    assert positions == [100, 200]


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ('{"top_k": 1' + "0" * 400 + "}", "top_k must be a number from 0 to"),
        ('{"top_k": 1' + "0" * 5000 + "}", "not valid JSON"),
        ('{"top_k": 5.5}', "top_k must be an integer"),
        ('{"top_k": true}', "top_k must be an integer"),
        ('{"temperature": NaN}', "temperature must be a number from 0 to 2"),
        ('{"temperature": 1e400}', "temperature must be a number from 0 to 2"),
        ('{"temperature": "1"}', "temperature must be a number"),
        ('{"top_p": 0}', "top_p must be a number from 1e-06 to 1"),
        ('{"min_p": -0.1}', "min_p must be"),
        ('{"repetition_penalty": 1e-40}', "repetition_penalty must be a number from 0.01 to 10"),
        ('{"eos_token_id": [2, -1]}', "eos_token_id must be token ids"),
        ('{"eos_token_id": 4294967296}', "eos_token_id must be token ids"),
        ('{"eos_token_id": {}}', "eos_token_id must be token ids"),
        (f'{{"eos_token_id": {list(range(1000))}}}', "eos_token_id names 10"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
async def test_a_generation_config_that_no_engine_can_follow_fails_its_model_with_a_sentence(
    tiny_models: dict[str, Path], tmp_path: Path, said: str, named: str
) -> None:
    directory = Path(shutil.copytree(tiny_models["llama"], tmp_path / "model"))
    (directory / "generation_config.json").write_text(said)
    with pytest.raises(TokenizerError, match=named) as raised:
        await Tokenizers(None).get(ModelSource(directory=str(directory)))
    assert len(str(raised.value)) < 500


async def test_a_generation_config_may_switch_parameters_off(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    directory = Path(shutil.copytree(tiny_models["llama"], tmp_path / "model"))
    (directory / "generation_config.json").write_text('{"temperature": 0, "top_k": -1, "min_p": 0, "top_p": 1}')
    text = await Tokenizers(None).get(ModelSource(directory=str(directory)))
    assert text.defaults == {"temperature": 0.0, "top_k": -1.0, "min_p": 0.0, "top_p": 1.0}
