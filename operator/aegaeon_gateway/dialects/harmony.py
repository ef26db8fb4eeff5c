"""gpt-oss: messages with a header that names a channel and, for calls, a recipient.

<|start|>assistant<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary
to=functions.NAME<|constrain|>json<|message|>{...}<|call|>; the answer is on the channel `final`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from aegaeon_gateway.dialects import calls, forms
from aegaeon_gateway.dialects.call_stream import CallStream, Tools
from aegaeon_gateway.dialects.pieces import Pieces
from aegaeon_gateway.text.marks import Unread

_HEADER_ENDS = ("<|message|>",)
_BODY_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>")
MARKS = frozenset({*_HEADER_ENDS, *_BODY_ENDS, "<|constrain|>"})
REASONING = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")
_RECIPIENT = re.compile(r"\bto=(\S+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class HarmonyReader:
    """Implements Reader. The prompt ends with `<|start|>assistant`: the text begins in a header."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._unread = Unread()
        self._header: str | None = ""  # as far as it is known; None inside a message
        self._channel = "final"
        self._recipient = ""
        self._calls: CallStream | None = None  # of a message with a recipient
        self._out = Pieces()

    def feed(self, text: str) -> Pieces:
        """See Reader."""
        self._unread.add(text)
        while (part := self._unread.to_mark(self._watched())) is not None:
            before, mark = part
            self._text(before)
            self._cross(mark)
        self._text(self._unread.certain(self._watched()))
        return self._taken()

    @property
    def reasoning(self) -> bool:
        """See Reader."""
        return self._header is None and self._calls is None and self._channel == "analysis"

    def flush(self) -> Pieces:
        """See Reader. A header without a message is what the model said."""
        self._text(self._unread.rest())
        if self._header:
            self._out.content += self._header
        elif self._header is None:
            self._end_of_message()
        return self._taken()

    def _watched(self) -> Sequence[str]:
        return _BODY_ENDS if self._header is None else _HEADER_ENDS

    def _cross(self, mark: str) -> None:
        if self._header is None:
            self._end_of_message()
            self._header = mark if mark in {"<|start|>", "<|channel|>"} else ""
            return
        channel, recipient = _CHANNEL.search(self._header), _RECIPIENT.search(self._header)
        self._channel = channel[1] if channel else "final"
        self._recipient = recipient[1].partition("<|")[0] if recipient else ""
        if self._recipient:
            self._calls = CallStream(forms.HARMONY, self._tools, self._recipient.removeprefix("functions."))
        self._header = None

    def _text(self, text: str) -> None:
        if self._header is not None:
            self._header += text
        elif self._calls is not None:
            self._out.calls += self._calls.feed(text)
        elif self._channel == "analysis":
            self._out.reasoning += text
        else:
            self._out.content += text

    def _end_of_message(self) -> None:
        if self._calls is None:
            return
        ended = self._calls.end(partial(calls.harmony, self._recipient))
        self._calls = None
        self._out.calls += ended.calls
        self._out.content += ended.left or ""

    def _taken(self) -> Pieces:
        out, self._out = self._out, Pieces()
        return out
