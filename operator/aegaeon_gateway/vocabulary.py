"""The strings of a tokenizer's tokens as one piece of memory, and its decoder: all that the gateway's loop needs of it.

A tokenizer of 150,000 tokens takes 100 MB and holds the interpreter's lock for a second while it is read; this takes
2 MB and is there at once.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, models
from tokenizers.decoders import Decoder

from aegaeon_gateway.workers.wire import Loaded


class TokenTable:
    """Answers what `tokenizers.Tokenizer` would of decoding."""

    def __init__(self, loaded: Loaded, strings: bytes) -> None:
        self._strings = strings
        self._ends = array("I")
        self._ends.frombytes(loaded.ends)
        self._size = loaded.size
        self._special = special = frozenset(loaded.special)
        self._added = {token: AddedToken("", special=token in special) for token in loaded.added}
        self._description = loaded.decoder
        self._decoder = _decoder(loaded.decoder)

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        return self._size

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        """By id; their strings are those of `id_to_token`."""
        return self._added

    def to_str(self) -> str:
        """tokenizer.json with its decoder alone."""
        return f'{{"decoder": {self._description}}}'

    def id_to_token(self, id: int) -> str | None:
        if not 0 <= id < len(self._ends) - 1 or self._ends[id] == self._ends[id + 1]:
            return None
        return self._strings[self._ends[id] : self._ends[id + 1]].decode()

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens; ids without a token make none."""
        shown = [token for token in ids if not (skip_special_tokens and token in self._special)]
        strings = [string for token in shown if (string := self.id_to_token(token)) is not None]
        return " ".join(strings) if self._decoder is None else str(self._decoder.decode(strings))


def _decoder(description: str) -> Decoder | None:
    """The decoder of a tokenizer.json, built as the library builds it."""
    decoder = json.loads(description)
    if decoder is None:
        return None
    empty = json.loads(Tokenizer(models.WordLevel({}, unk_token="")).to_str())
    made: Decoder = Tokenizer.from_str(json.dumps({**empty, "decoder": decoder})).decoder
    return made
