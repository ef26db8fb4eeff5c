"""Text with marks around reasoning and calls, read as it comes.

Newlines next to a mark belong to the format and are dropped. What was taken for a call and is none is content, its
marks included, but for calls of it that were passed on already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon_gateway.dialects.call_stream import CallStream, Read, Tools
from aegaeon_gateway.dialects.forms import Form
from aegaeon_gateway.dialects.pieces import Pieces
from aegaeon_gateway.text.marks import Unread


@dataclass(frozen=True, slots=True)
class Region:
    """Between `opening` and `closing` there is reasoning, or what `read` makes calls of that begin in `form`.

    `closing` empty: it ends where the next one begins, or with the text.
    """

    opening: str
    closing: str
    read: Read | None = None
    form: Form | None = None


@dataclass(frozen=True, slots=True)
class Marks:
    """`regions` of a family; `ignored`: marks around calls that say nothing; `bare`: a text that begins with `{` is a
    call as well, if it calls one of the tools."""

    regions: tuple[Region, ...]
    ignored: tuple[str, ...] = ()
    bare: Region | None = None

    @property
    def all(self) -> frozenset[str]:
        """Every text that means something."""
        ends = {mark for region in self.regions for mark in (region.opening, region.closing)}
        return frozenset({*ends, *self.ignored} - {""})


class MarkedReader:
    """Implements Reader. `inside`: the prompt ends with the opening of reasoning."""

    def __init__(self, marks: Marks, tools: Tools, *, inside: bool = False) -> None:
        self._openings = {region.opening: region for region in marks.regions}
        self._ignored = marks.ignored
        self._bare = marks.bare
        self._tools = tools
        reasoning = next((region for region in marks.regions if region.read is None), None)
        self._region = reasoning if inside else None
        self._at_start = not inside
        self._after_mark = inside
        self._unread = Unread()
        self._newlines = ""  # behind the text so far: dropped where a mark follows
        self._raw: list[str] = []  # the opening of a region of calls, with what came right before it
        self._calls: CallStream | None = None  # of such a region
        self._out = Pieces()

    def feed(self, text: str) -> Pieces:
        """See Reader."""
        self._unread.add(text)
        if self._at_start and self._bare is not None and not self._begun():
            return self._taken()
        while (part := self._unread.to_mark(self._watched())) is not None:
            before, mark = part
            self._text(before)
            if self._calls is not None and self._calls.in_text:
                self._text(mark)
            else:
                self._cross(mark)
        self._text(self._unread.certain(self._watched()))
        return self._taken()

    @property
    def reasoning(self) -> bool:
        """See Reader."""
        return self._region is not None and self._region.read is None

    def flush(self) -> Pieces:
        """See Reader."""
        self._text(self._unread.rest())
        if self._region is not None and self._calls is not None:
            self._end_of_calls(self._region, self._calls, "")
        self._write(self._newlines)
        self._newlines = ""
        return self._taken()

    def _begun(self) -> bool:
        """True once the beginning of the text is known."""
        first = self._unread.text.lstrip()[:1]
        if first == "{":
            self._enter(self._bare)
            self._after_mark = False
        self._at_start = not first
        return bool(first)

    def _watched(self) -> Sequence[str]:
        if self._region is None:
            return (*self._openings, *self._ignored)
        if self._region.closing:
            return (self._region.closing,)
        return tuple(self._openings)

    def _cross(self, mark: str) -> None:
        """A mark ends what was there, and may begin something."""
        region, after = self._region, True
        if region is not None and self._calls is not None:
            after = self._end_of_calls(region, self._calls, mark if mark == region.closing else "")
        ends = region is not None and mark == region.closing
        self._enter(None if ends else self._openings.get(mark))
        if self._calls is not None:
            self._raw = [self._newlines, mark]
        self._newlines, self._after_mark = "", after

    def _enter(self, region: Region | None) -> None:
        self._region = region
        self._calls = CallStream(region.form, self._tools) if region is not None and region.form is not None else None

    def _end_of_calls(self, region: Region, calls: CallStream, closing: str) -> bool:
        """If its body cannot be read, what is left of it is content, and False is returned."""
        assert region.read is not None, "a region of calls"
        ended = calls.end(region.read, known=region is self._bare)
        self._out.calls += ended.calls
        if ended.left is not None:
            before = () if ended.begun else self._raw
            self._out.content += "".join((*before, ended.left, closing))
        self._raw, self._newlines, self._calls = [], "", None
        return ended.left is None

    def _text(self, text: str) -> None:
        """Between marks."""
        if self._calls is not None:
            self._out.calls += self._calls.feed(text)
            return
        if self._after_mark:
            text = text.lstrip("\n")
        if not text:
            return
        self._after_mark = False
        shown = (self._newlines + text).rstrip("\n")
        self._newlines = (self._newlines + text)[len(shown) :]
        self._write(shown)

    def _write(self, text: str) -> None:
        if self._region is None:
            self._out.content += text
        else:
            self._out.reasoning += text

    def _taken(self) -> Pieces:
        out, self._out = self._out, Pieces()
        return out
