"""Which name was meant: one that differs in case, in separators, or in a letter or two."""

from __future__ import annotations

from collections.abc import Container, Iterable

LONGEST = 48
"""characters of a name that is compared; ours are shorter"""
_SHORT = 8
"""names below it may differ in one letter, and longer ones in two"""


def meant(name: str, known: Iterable[str], present: Container[str]) -> str | None:
    """The known name that `name` is likely to be; None where that is in `present` as well, or there is none."""
    if len(name) > LONGEST:
        return None
    plain = _plain(name)
    for candidate in known:
        if (
            candidate not in present
            and candidate != name
            and (_plain(candidate) == plain or _near(name.lower(), candidate))
        ):
            return candidate
    return None


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _near(name: str, known: str) -> bool:
    most = 1 if len(known) < _SHORT else 2
    if len(known) < 4 or name[:1] != known[:1] or abs(len(name) - len(known)) > most:
        return False
    return _distance(name, known) <= most


def _distance(name: str, known: str) -> int:
    """Letters to insert, delete, replace or swap with their neighbour (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(known) + 1))
    for i, letter in enumerate(name, 1):
        older, before, row = before, row, [i]
        for j, against in enumerate(known, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != against))
            if i > 1 and j > 1 and letter == known[j - 2] and name[i - 2] == against:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1]
