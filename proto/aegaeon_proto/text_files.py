"""Names of the small files of a model beside its configuration: gateways read them, and sidecars fetch them with
weights."""

from __future__ import annotations

from aegaeon_proto.pooling import MODULES, POOLING

TEXT_FILES = (
    MODULES,
    POOLING,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
"""of tokenizers, templates and pooling; no model has all of them"""
