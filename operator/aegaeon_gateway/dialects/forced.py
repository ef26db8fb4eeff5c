"""An output that a grammar makes calls of tools, and nothing else."""

from __future__ import annotations

from aegaeon_gateway.dialects import calls, forms
from aegaeon_gateway.dialects.call_stream import CallStream, Tools
from aegaeon_gateway.dialects.pieces import Pieces


class ForcedReader:
    """Implements Reader. What ends before it is whole is content, but for calls that were passed on."""

    def __init__(self, tools: Tools) -> None:
        self._stream = CallStream(forms.FORCED, tools)

    def feed(self, text: str) -> Pieces:
        """See Reader."""
        return Pieces(calls=self._stream.feed(text))

    @property
    def reasoning(self) -> bool:
        """See Reader."""
        return False

    def flush(self) -> Pieces:
        """See Reader."""
        ended = self._stream.end(calls.forced)
        return Pieces(content=ended.left or "", calls=[*ended.calls])
