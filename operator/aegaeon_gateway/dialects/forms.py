"""How families write a call up to its arguments, so that these can be passed on while they are generated.

What is not written so, or more loosely (another order, further keys), is read when it is complete: see calls.py. All
parts are bounded, so that where a text is cut makes no difference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST_HEAD = 2048
"""characters, more than any of these can match"""
_S = r"\s{0,64}"
_OBJECT = rf"{_S}(?=\{{)"
_SEPARATOR = "<｜tool▁sep｜>"


@dataclass(frozen=True, slots=True)
class Form:
    """`head`: before the arguments of the first call of a body; `following`: between those of two. Their one group that
    matches is the call's name; without any, the name is known from elsewhere."""

    head: re.Pattern[str]
    following: re.Pattern[str] | None = None


def _named(key: str) -> str:
    return rf'\{{{_S}"name"{_S}:{_S}"([^"\\]{{1,128}})"{_S},{_S}"{key}"{_S}:{_OBJECT}'


_CALL = _named("arguments")
_EITHER = _named("(?:parameters|arguments)")

HERMES = Form(re.compile(_S + _EITHER))
LLAMA3 = Form(re.compile(rf"[\s;]{{0,64}}{_EITHER}"), re.compile(rf"{_S}\}}[\s;]{{0,64}}{_EITHER}"))
MISTRAL = Form(
    re.compile(
        rf'{_S}(?:\[{_S}{_CALL}|([^\s\[\]{{}}"][^\[\]{{}}"]{{0,127}})(?:\[CALL_ID\][^\[\]{{}}"]{{0,128}})?\[ARGS\]{_OBJECT})'
    ),
    re.compile(rf"{_S}\}}{_S},{_S}{_CALL}"),
)
DEEPSEEK = Form(
    re.compile(
        rf"\w{{0,64}}{_SEPARATOR}([^\n{{<]{{1,128}})\n{_S}```json{_OBJECT}|([^\n{{<]{{1,128}}){_SEPARATOR}{_OBJECT}"
    )
)
HARMONY = Form(re.compile(_OBJECT))
FORCED = Form(re.compile(rf"{_S}\[?{_S}{_CALL}"), re.compile(rf"{_S}\}}{_S},{_S}{_CALL}"))
