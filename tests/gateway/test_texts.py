"""Tokenizers of several models load side by side, also in a process that has not imported transformers yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, sys
from aegaeon_gateway.texts import Tokenizers
from aegaeon_proto.v1.model_pb2 import ModelSource

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
