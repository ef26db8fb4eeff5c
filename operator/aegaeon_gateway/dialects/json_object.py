"""How much of a text that comes in parts is one JSON object (RFC 8259), so that its beginning can be passed on.

What libraries for partial JSON give is the value so far; here the text itself is wanted, and where it stops being JSON.
"""

from __future__ import annotations

_DIGITS = "0123456789"
_NUMBER: dict[str, dict[str, str]] = {
    # what may follow in a number; those of _NUMBER_ENDS may be its end
    "minus": {"0": "zero", **dict.fromkeys("123456789", "integer")},
    "zero": {".": "dot", **dict.fromkeys("eE", "exponent")},
    "integer": {".": "dot", **dict.fromkeys(_DIGITS, "integer"), **dict.fromkeys("eE", "exponent")},
    "dot": dict.fromkeys(_DIGITS, "fraction"),
    "fraction": {**dict.fromkeys(_DIGITS, "fraction"), **dict.fromkeys("eE", "exponent")},
    "exponent": {**dict.fromkeys("+-", "sign"), **dict.fromkeys(_DIGITS, "power")},
    "sign": dict.fromkeys(_DIGITS, "power"),
    "power": dict.fromkeys(_DIGITS, "power"),
}
_NUMBER_ENDS = frozenset(("zero", "integer", "fraction", "power"))
_NUMBER_BEGINS = {"-": "minus", **_NUMBER["minus"]}
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_SPACES = frozenset(("begin", "key", "key or end", "colon", "value", "value or end", "next"))
_HEX = frozenset("0123456789abcdefABCDEF")


class JsonObject:
    """A state machine over its characters. `complete`: its last brace has come."""

    def __init__(self) -> None:
        self._state = "begin"
        self._open: list[str] = []  # the ends of what is open, the innermost last
        self._is_key = False  # the string that is open
        self._left = ""  # of a literal
        self._hex = 0  # digits of an escape that are to come

    @property
    def complete(self) -> bool:
        return self._state == "whole"

    @property
    def in_string(self) -> bool:
        return self._state in ("string", "escape")

    def feed(self, text: str) -> int:
        """Take the next part; returns how many of its characters belong to the object."""
        for at, char in enumerate(text):
            if not self._take(char):
                return at
        return len(text)

    def _take(self, char: str) -> bool:
        if self._in_number(char) or (char in " \t\n\r" and self._state in _SPACES):
            return True
        match self._state:
            case "string":
                return self._in_string(char)
            case "escape":
                return self._escaped(char)
            case "literal":
                return self._in_literal(char)
            case "value" | "value or end":
                return self._value(char)
        return self._between(char)

    def _in_number(self, char: str) -> bool:
        """True while the number continues; the character behind its end is read as one that follows a value."""
        if self._state not in _NUMBER:
            return False
        if (state := _NUMBER[self._state].get(char)) is None:
            self._state = "next" if self._state in _NUMBER_ENDS else "wrong"
            return False
        self._state = state
        return True

    def _between(self, char: str) -> bool:
        """Take a character between values."""
        match self._state, char:
            case "begin", "{":
                self._enter("}", "key or end")
            case "key" | "key or end", '"':
                self._state, self._is_key = "string", True
            case "colon", ":":
                self._state = "value"
            case "next", ",":
                self._state = "key" if self._open[-1] == "}" else "value"
            case "key or end" | "next", _ if self._open[-1] == char:
                self._leave()
            case _:
                return False
        return True

    def _value(self, char: str) -> bool:
        if char == "{":
            self._enter("}", "key or end")
        elif char == "[":
            self._enter("]", "value or end")
        elif char == '"':
            self._state, self._is_key = "string", False
        elif char in _LITERALS:
            self._state, self._left = "literal", _LITERALS[char]
        elif char in _NUMBER_BEGINS:
            self._state = _NUMBER_BEGINS[char]
        elif char == "]" and self._state == "value or end":
            self._leave()
        else:
            return False
        return True

    def _enter(self, end: str, state: str) -> None:
        self._open.append(end)
        self._state = state

    def _leave(self) -> None:
        self._open.pop()
        self._state = "next" if self._open else "whole"

    def _in_string(self, char: str) -> bool:
        if char == '"':
            self._state = "colon" if self._is_key else "next"
        elif char == "\\":
            self._state = "escape"
        return char >= " "

    def _escaped(self, char: str) -> bool:
        if self._hex:
            self._hex -= 1
            self._state = "escape" if self._hex else "string"
            return char in _HEX
        if char == "u":
            self._hex = 4
            return True
        self._state = "string"
        return char in '"\\/bfnrt'

    def _in_literal(self, char: str) -> bool:
        expected, self._left = self._left[0], self._left[1:]
        self._state = "literal" if self._left else "next"
        return char == expected
