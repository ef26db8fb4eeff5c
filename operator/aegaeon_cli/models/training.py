"""Trains the tiny models in a fixed number of steps: same machine, same text, same weights.

One thread a model: the tensors are too small for more to help, and the sums come out the same on any number of cores.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from aegaeon_cli.models.architectures import ARCHITECTURES, Architecture
from aegaeon_cli.models.errors import StoppedError
from aegaeon_cli.models.text import Entry, entries, lesson
from aegaeon_cli.models.tokenizer import BEGIN, END, PAD, train_tokenizer

STEPS = 360
BATCH = 4
WINDOW_TOKENS = 128
LEARNING_RATE = 4e-3
WARM_UP = 16
PLAIN_SHARE = 0.1  # of the examples are plain text, so that completions without a chat work too
REPORTS = 6


def train_all(directory: Path, report: Callable[[str], None]) -> dict[str, list[str]]:
    """Train the four models, as many at a time as there are cores, and write each to `directory`/NAME.

    Returns, by name, the questions that each has learnt to answer.
    """
    text = entries()
    tokenizer = train_tokenizer(part for entry in text for part in (entry.question, entry.answer))
    report(f"learning from {len(text)} docstrings of the standard library")
    lessons = {architecture.name: lesson(text, architecture.seed) for architecture in ARCHITECTURES}
    models = {architecture.name: _untrained(architecture, tokenizer) for architecture in ARCHITECTURES}
    batches = {a.name: _batches(tokenizer, lessons[a.name], a.seed) for a in ARCHITECTURES}
    stop = Event()
    with ThreadPoolExecutor(min(len(models), os.cpu_count() or 1)) as pool:
        try:
            for job in [pool.submit(train, name, model, batches[name], report, stop) for name, model in models.items()]:
                job.result()
        finally:
            stop.set()
    for name, model in models.items():
        save(model, tokenizer, directory / name)
    return {name: [entry.question for entry in learnt] for name, learnt in lessons.items()}


def train(
    name: str, model: PreTrainedModel, batches: Iterator[torch.Tensor], report: Callable[[str], None], stop: Event
) -> None:
    """Train `model` (float32) in place on token ids of shape (batch, window + 1).

    `report` gets a line now and then. Raises StoppedError soon after `stop` is set.
    """
    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, STEPS, pct_start=WARM_UP / STEPS, cycle_momentum=False
    )
    for step in range(1, STEPS + 1):
        if stop.is_set():
            raise StoppedError(f"{name}: the training was stopped")
        loss = _step(model, next(batches), optimizer)
        schedule.step()
        if step % (STEPS // REPORTS) == 0:
            report(f"{name}: step {step} of {STEPS}, loss {loss:.2f}")


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write config.json, model.safetensors (float32), generation_config.json and the tokenizer's files."""
    disable_progress_bar()
    assert model.generation_config is not None
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.do_sample = True
    model.generation_config.temperature = 0.2  # so small a model rambles at 1
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory, save_jinja_files=False)


def _untrained(architecture: Architecture, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    special: dict[str, Any] = {
        "bos_token_id": tokenizer.convert_tokens_to_ids(BEGIN),
        "eos_token_id": tokenizer.convert_tokens_to_ids(END),
        "pad_token_id": tokenizer.convert_tokens_to_ids(PAD),
    }
    torch.manual_seed(architecture.seed)
    return architecture.build(len(tokenizer), special)


def _step(model: PreTrainedModel, window: torch.Tensor, optimizer: torch.optim.Optimizer) -> float:
    logits = model(input_ids=window[:, :-1], use_cache=False).logits
    loss = cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def _examples(tokenizer: PreTrainedTokenizerFast, text: Sequence[Entry], order: random.Random) -> Iterator[list[int]]:
    while True:
        for entry in order.sample(text, len(text)):
            plain = order.random() < PLAIN_SHARE
            example = f"{BEGIN}{entry.name}: {entry.answer}{END}" if plain else _chat(tokenizer, entry)
            yield tokenizer.encode(example, add_special_tokens=False)


def _chat(tokenizer: PreTrainedTokenizerFast, entry: Entry) -> str:
    messages = [{"role": "user", "content": entry.question}, {"role": "assistant", "content": entry.answer}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False))


def _batches(tokenizer: PreTrainedTokenizerFast, text: Sequence[Entry], seed: int) -> Iterator[torch.Tensor]:
    """Rows of WINDOW_TOKENS + 1 that begin where an example does, as prompts do; the last example is cut."""
    examples = _examples(tokenizer, text, random.Random(seed))
    while True:
        yield torch.tensor([_row(examples) for _ in range(BATCH)])


def _row(examples: Iterator[list[int]]) -> list[int]:
    row: list[int] = []
    while len(row) <= WINDOW_TOKENS:
        row += next(examples)
    return row[: WINDOW_TOKENS + 1]
