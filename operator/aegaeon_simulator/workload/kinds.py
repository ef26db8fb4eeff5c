"""Kinds of models: the names that traces use, and those of the latency constants they stand for."""

from __future__ import annotations

QWEN_7B = "qwen2_5_7b"
YI_9B = "yi1_5_9b_chat"
LLAMA_13B = "llama2_13b"
QWEN_72B_TP4 = "qwen2_72b_tp4"

# Ten models of the paper's evaluation (section 7.1): six of 7B, two of 9B, two of 13B.
PAPER_MIX = (QWEN_7B,) * 6 + (YI_9B,) * 2 + (LLAMA_13B,) * 2

# Classes of prod47 (small, large) are mapped by size: they are not profiles of one model.
ALIASES = {
    "7b": QWEN_7B,
    "9b": YI_9B,
    "13b": LLAMA_13B,
    "qwen2.5-7b": QWEN_7B,
    "yi1.5-9b": YI_9B,
    "llama2-13b": LLAMA_13B,
    "llama2_13b_chat": LLAMA_13B,
    "small-1.8-7b": QWEN_7B,
    "large-32-72b-tp4": QWEN_72B_TP4,
}
KINDS = frozenset(ALIASES.values())


def canonical(name: str) -> str | None:
    """The kind that `name` stands for, or None when there is no such kind."""
    return name if name in KINDS else ALIASES.get(name.lower())


def paper_kind(model: int) -> str:
    """Kind of model `model` in the paper's mix."""
    return PAPER_MIX[model % len(PAPER_MIX)]
