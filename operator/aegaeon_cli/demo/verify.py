"""Compares an output with Hugging Face transformers, position by position.

transformers is fed with the prompt and our own tokens, so one forward pass tells what it would have chosen at every
position. Our greedy token must have the largest logit there; rounding may swap two logits that are nearly equal, so
tokens behind by less than `tie` are counted apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # transformers and torch take seconds to import: they are when a first output is compared
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TIE = 1e-4  # in logits, float32


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one output with transformers.

    `first_difference`: an index into the output, None when there is none; `gap`: how far the logit of that token is
    below the largest, 0 when there is none.
    """

    identical: bool
    positions: int
    ties: int
    first_difference: int | None
    gap: float


def verify(model_dir: Path, prompt_ids: Sequence[int], output_ids: Sequence[int], tie: float = TIE) -> Verdict:
    """Check a greedy output of the model in `model_dir` (float32, on the CPU). An empty output is identical."""
    if not output_ids:
        return Verdict(True, 0, 0, None, 0.0)
    gaps = _gaps(load_model(model_dir), prompt_ids, output_ids)
    wrong = (gaps >= tie).nonzero().flatten().tolist()
    ties = int(((gaps > 0) & (gaps < tie)).sum())
    if not wrong:
        return Verdict(True, len(output_ids), ties, None, 0.0)
    return Verdict(False, len(output_ids), ties, wrong[0], float(gaps[wrong[0]]))


def with_end(output_ids: Sequence[int], finish_reason: str | None, eos: int) -> list[int]:
    """The output with the end-of-sequence token that ended it, which a gateway may keep to itself."""
    if finish_reason == "stop" and (not output_ids or output_ids[-1] != eos):
        return [*output_ids, eos]
    return list(output_ids)


@lru_cache(maxsize=16)
def load_model(model_dir: Path) -> PreTrainedModel:
    """transformers' own model in float32, ready to run."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model.train(False)
    return model


@lru_cache(maxsize=16)
def load_tokenizer(model_dir: Path) -> PreTrainedTokenizerBase:
    """transformers' own tokenizer, of tokenizer.json as it is, which is what the model was trained with.

    AutoTokenizer may take the class of the model's type instead: that of Qwen2 cuts every number into its digits.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(model_dir)
    return tokenizer


def chat_ids(model_dir: Path, question: str) -> list[int]:
    """Token ids of a chat with one question, as transformers' apply_chat_template makes them."""
    messages = [{"role": "user", "content": question}]
    tokenizer = load_tokenizer(model_dir)
    text = str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    return list(tokenizer.encode(text, add_special_tokens=False))


def text_of(model_dir: Path, output_ids: Sequence[int]) -> str:
    """The output as a client sees it: without special tokens."""
    return str(load_tokenizer(model_dir).decode(list(output_ids), skip_special_tokens=True))


def eos_id(model_dir: Path) -> int:
    """The end-of-sequence token of generation_config.json (its first, when there are several)."""
    eos = json.loads((model_dir / "generation_config.json").read_bytes())["eos_token_id"]
    return int(eos[0] if isinstance(eos, list) else eos)


def _gaps(model: PreTrainedModel, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> torch.Tensor:
    """Shape (output,): the largest logit less that of our token, at every position."""
    import torch

    ids = torch.tensor([[*prompt_ids, *output_ids[:-1]]])
    with torch.inference_mode():
        logits = model(input_ids=ids, logits_to_keep=len(output_ids), use_cache=False).logits[0]
    ours = logits.gather(1, torch.tensor(output_ids).unsqueeze(1)).squeeze(1)
    gaps: torch.Tensor = logits.max(dim=1).values - ours
    return gaps
