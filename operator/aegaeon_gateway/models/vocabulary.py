"""The strings of a tokenizer's tokens as one piece of memory, and its decoder's description: all that decoding needs.

A tokenizer of 150,000 tokens takes 100 MB and holds the interpreter's lock for a second while it is read; this takes
2 MB and is there at once.
"""

from __future__ import annotations

from array import array

from tokenizers import AddedToken

from aegaeon_gateway.workers.wire import Loaded


class TokenTable:
    """Answers what `tokenizers.Tokenizer` would of decoding."""

    def __init__(self, loaded: Loaded, strings: bytes) -> None:
        self._strings = strings
        self._ends = array("I")
        self._ends.frombytes(loaded.ends)
        special = frozenset(loaded.special)
        self._added = {token: AddedToken("", special=token in special) for token in loaded.added}
        self._description = loaded.decoder

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Added tokens by id; their strings are those of `id_to_token`."""
        return self._added

    def to_str(self) -> str:
        """tokenizer.json with its decoder alone."""
        return f'{{"decoder": {self._description}}}'

    def id_to_token(self, id: int) -> str | None:
        if not 0 <= id < len(self._ends) - 1 or self._ends[id] == self._ends[id + 1]:
            return None
        return self._strings[self._ends[id] : self._ends[id + 1]].decode()
