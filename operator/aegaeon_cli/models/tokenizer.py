"""A byte-level tokenizer of two thousand entries with a chat template, shared by the four models."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

VOCABULARY = 2048
PAD, BEGIN, END = "<|pad|>", "<|begin|>", "<|end|>"
ROLES = {role: f"<|{role}|>" for role in ("system", "user", "assistant")}
SPECIAL = (PAD, BEGIN, END, *ROLES.values())
CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('a message has the role system, user or assistant, not ' + message['role']) -}}"
    "{%- endif -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] | trim + eos_token -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-pair merges learnt from `texts`; every byte is in the vocabulary, so any text can be encoded."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=list(ROLES.values()),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
