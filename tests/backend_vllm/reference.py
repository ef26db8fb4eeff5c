"""transformers' logits of whole sequences, computed in a process without vLLM, which replaces some of its classes.

`python -m backend_vllm.reference OUT.npz TOKENS DIRECTORY...`: float32 [tokens, vocabulary] for each directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).parents[1]


def logits(directories: Iterable[Path], tokens: list[int], out: Path) -> Mapping[str, Any]:
    """By the directories' names."""
    arguments = [str(out), ",".join(map(str, tokens)), *map(str, directories)]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    subprocess.run([sys.executable, "-m", "backend_vllm.reference", *arguments], check=True, env=environment)
    found: Mapping[str, Any] = np.load(out)
    return found


def _main(out: str, tokens: str, *directories: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([[int(token) for token in tokens.split(",")]])
    found: dict[str, Any] = {}
    for directory in directories:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            found[Path(directory).name] = model(ids, use_cache=False).logits[0].numpy()
    np.savez(out, **found)


if __name__ == "__main__":
    _main(*sys.argv[1:])
