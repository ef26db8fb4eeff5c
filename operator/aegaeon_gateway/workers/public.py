"""How much of a prompt is of a system prompt that its ModelPool calls public: all tenants share the KV cache of that.

Counted in tokens, from the first on, of what the chat template makes of the public text alone. So whatever else a
request has (tools, other messages) is never counted, and neither is a word that a client wrote.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from datetime import date
from functools import lru_cache

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.schema import ChatRequest
from aegaeon_gateway.workers.model import ModelText
from aegaeon_gateway.workers.prompts import Request
from aegaeon_gateway.workers.wire import Job

_KEPT = 64  # heads that a worker keeps; a ModelPool has a few for each model
_QUESTIONS = ("a", "b")


def public_tokens(request: Request, prompts: Iterable[Sequence[int]], job: Job, text: ModelText) -> list[int]:
    """Count the tokens of each prompt that begin like any of the public ones."""
    special = request.add_special_tokens
    if isinstance(request, ChatRequest):
        heads = [_of_chats(text, public, bool(special), date.today()) for public in job.public]
    else:
        heads = [_of_completions(text, public, special is not False) for public in job.public]
    return [max(_common(prompt, head) for head in heads) for prompt in prompts]


@lru_cache(_KEPT)
def _of_chats(text: ModelText, public: str, special: bool, _day: date) -> array[int]:
    """The tokens that two chats have in common that share the system prompt alone. `_day`: templates may write it."""
    chats = [[{"role": "system", "content": public}, {"role": "user", "content": question}] for question in _QUESTIONS]
    try:
        first, second = (text.encode(text.render(chat), special=special) for chat in chats)
    except InvalidRequestError:  # a template without a place for system prompts
        return array("I")
    return first[: _common(first, second)]


@lru_cache(_KEPT)
def _of_completions(text: ModelText, public: str, special: bool) -> array[int]:
    return text.encode(public, special=special)


def _common(prompt: Sequence[int], head: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(prompt, head, strict=False))
    return next((at for at, (token, expected) in pairs if token != expected), min(len(prompt), len(head)))
