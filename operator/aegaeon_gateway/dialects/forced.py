"""An output that a grammar makes calls of tools, and nothing else."""

from __future__ import annotations

from aegaeon_gateway.dialects import calls
from aegaeon_gateway.dialects.pieces import Pieces


class ForcedReader:
    """Implements Reader. What ends before it is whole is content."""

    def __init__(self) -> None:
        self._body: list[str] = []

    def feed(self, text: str) -> Pieces:
        """See Reader."""
        self._body.append(text)
        return Pieces()

    @property
    def reasoning(self) -> bool:
        """See Reader."""
        return False

    def flush(self) -> Pieces:
        """See Reader."""
        body, self._body = "".join(self._body), []
        try:
            return Pieces(calls=calls.forced(body))
        except ValueError:
            return Pieces(content=body)
