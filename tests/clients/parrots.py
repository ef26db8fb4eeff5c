"""Tiny models that have learnt by heart which tool an agent's user asks for, whatever else is in the prompt.

Their template shows the last message alone: its role, and of a user's which of the LESSONS it names. So prompts of any
agent, of any length, are the few tokens that were learnt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clients.taught import train
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CONTEXT = 262_144
"""agents ask for tens of thousands of output tokens"""
STEPS = 60
"""of training, for each lesson"""
DONE = "All done."
LESSONS = ("run", "write", "look")
"""what a user's message may name, as in `LESSON write`"""
ROLES = ("system", "user", "assistant", "tool")
SPECIAL = ["<|pad|>", "<|begin|>", "<|end|>", "<|tools|>", *(f"<|{name}|>" for name in (*ROLES, *LESSONS))]
TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|tools|>{% endif %}{% set last = messages[-1] %}<|{{ last.role }}|>"
    "{% if last.role == 'user' and tools %}"
    + "".join(f"{{% if 'LESSON {name}' in last.content %}}<|{name}|>{{% endif %}}" for name in LESSONS)
    + "{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}{# <think></think> <tool_call> #}"
)

Call = tuple[str, dict[str, Any]]


def teach(directory: Path, calls: Mapping[str, Call]) -> None:
    """Write the model that answers each lesson with its call, and everything else with DONE."""
    rows = [(prompt, f"{answer}<|end|>") for prompt, answer in _lessons(calls)]
    train(directory, _tokenizer([answer for _, answer in rows]), rows, STEPS * len(rows), CONTEXT)
    defaults = directory / "generation_config.json"  # agents ask for no temperature
    defaults.write_text(json.dumps({**json.loads(defaults.read_text()), "temperature": 0.0}))


def _lessons(calls: Mapping[str, Call]) -> list[tuple[str, str]]:
    """Prompts, and what the model says then."""
    lessons = [(f"<|begin|><|tools|><|user|><|{lesson}|><|assistant|>", _call(*calls[lesson])) for lesson in LESSONS]
    for tools in ("<|tools|>", ""):
        lessons += [(f"<|begin|>{tools}<|{role}|><|assistant|>", DONE) for role in ("user", "system", "tool")]
    return lessons


def _call(name: str, arguments: dict[str, Any]) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def _tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    raw.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<|begin|>", eos_token="<|end|>", pad_token="<|pad|>",
        extra_special_tokens=SPECIAL[3:], chat_template=TEMPLATE,
    )  # fmt: skip
