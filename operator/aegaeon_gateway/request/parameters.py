"""Parameters that a request may name without changing its answer: refused, dropped, or without effect by design.

Together with the fields of schema.py this is the one table: requests are checked by it, and docs/reference/api.md and
/openapi.json are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from aegaeon_gateway.errors import InvalidRequestError

_NEUTRAL_BYTES = 64  # every neutral value is shorter; what is longer is not even parsed


@dataclass(frozen=True, slots=True)
class Refused:
    """Answered with 400 unless the value asks for nothing: null, or one of `neutral`. `reason`: a clause for people."""

    reason: str
    neutral: tuple[Any, ...] = ()

    def asks(self, value: Any) -> bool:
        """True when a value asks for something."""
        return not any(type(value) is type(neutral) and value == neutral for neutral in self.allowed)

    @property
    def allowed(self) -> tuple[Any, ...]:
        return (None, *self.neutral)

    def check(self, name: str, raw: bytes) -> None:
        """Raises InvalidRequestError."""
        if self.asks(orjson.loads(raw) if len(raw) <= _NEUTRAL_BYTES else ...):
            raise self.error(name)

    def error(self, name: str) -> InvalidRequestError:
        """The error for this parameter."""
        message = f"{name} is not supported here: {self.reason}; leave it out"
        return InvalidRequestError(message, param=name, code="unsupported_parameter")


@dataclass(frozen=True, slots=True)
class Hint(Refused):
    """The answer is right without it: dropped and said, and refused only where requests are strict."""


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Checked against `type` and nothing more. `reason`: why nothing has to be done."""

    type: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Known:
    """The names that an endpoint's requests may have beside the fields of their type."""

    refused: Mapping[str, Refused]
    no_effect: Mapping[str, NoEffect]


TEXT_ONLY = "input and output are text"

REFUSED: dict[str, Refused] = {
    "audio": Refused(TEXT_ONLY),
    "best_of": Refused("all choices are returned; ask for n", (1,)),
    "chat_template": Refused("a template is a program; it comes with the model"),
    "ec_transfer_params": Refused("engines move caches by themselves"),
    "function_call": Refused("it is the older form of tool_choice", ("none", "auto")),
    "functions": Refused("they are the older form of tools", ([],)),
    "kv_transfer_params": Refused("engines move caches by themselves"),
    "logprob_token_ids": Refused("logprobs are of the likeliest tokens"),
    "media_io_kwargs": Refused(TEXT_ONLY, ({},)),
    "mm_payload": Refused(TEXT_ONLY),
    "mm_processor_kwargs": Refused(TEXT_ONLY, ({},)),
    "modalities": Refused(TEXT_ONLY, (["text"],)),
    "prediction": Hint("there is no speculation on a given text"),
    "prompt_embeds": Refused(TEXT_ONLY),
    "repetition_detection": Refused("use repetition_penalty"),
    "return_prompt_text": Refused("POST /tokenize shows the prompt's tokens", (False,)),
    "store": Hint("answers are not kept", (False,)),
    "suffix": Refused("no model here fills in the middle", ("",)),
    "use_beam_search": Refused("there is no beam search", (False,)),
    "verbosity": Hint("no model here knows of it", ("medium",)),
    "vllm_xargs": Refused("there are no such extensions", ({},)),
    "watermarking": Refused("output is not watermarked", (False,)),
    "web_search_options": Hint("nothing is searched"),
}

NO_EFFECT: dict[str, NoEffect] = {
    "length_penalty": NoEffect(float | None, "it is of beam search, which is refused"),
    "metadata": NoEffect(dict[str, str] | None, "answers are not kept"),
    "prompt_cache_key": NoEffect(str | None, "prompts are found by their content"),
    "prompt_cache_retention": NoEffect(str | None, "what is cached stays while there is room"),
    "request_id": NoEffect(str | None, "send X-Request-Id, which comes back"),
    "return_mm_kwargs": NoEffect(bool | None, "it is of other endpoints"),
    "return_token_offsets": NoEffect(bool | None, "it is of other endpoints"),
    "routed_experts_prompt_start": NoEffect(int | None, "experts are not returned"),
    "safety_identifier": NoEffect(str | None, "tenants are known by their keys"),
    "session_id": NoEffect(str | None, "prompts are found by their content"),
    "spaces_between_special_tokens": NoEffect(bool | None, "fast tokenizers add none"),
    "stream_interval": NoEffect(int | None, "tokens are sent as they come; those that came together in one write"),
    "user": NoEffect(str | None, "tenants are known by their keys"),
}

COMPLETIONS = Known(REFUSED, NO_EFFECT)
"""of chats and completions"""


def refused(*names: str) -> dict[str, Refused]:
    """Entries for parameters of chats that another endpoint refuses for the same reasons."""
    return {name: REFUSED[name] for name in names}


def unused(*names: str) -> dict[str, NoEffect]:
    """Entries for parameters of chats that have no effect at another endpoint either."""
    return {name: NO_EFFECT[name] for name in names}
