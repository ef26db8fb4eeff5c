"""Write docs/design/structure.md and its pictures: the product's rooms and arrows, before and after.

Run by `make structure`. before.json is of commit d497ce9e: a checkout of it (`git worktree add`), and measure.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draw import circles, floors, picture
from measure import MOST_LINES, House, Plan, Room, measure

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BEFORE = "d497ce9e"


def main() -> None:
    """Write the page and a picture for each package."""
    before, after = _read(json.loads((HERE / "before.json").read_text("utf-8"))), measure(ROOT)
    old = {plan.name: plan for plan in before.plans}
    for plan in after.plans:
        (HERE / f"{plan.name or 'packages'}.svg").write_text(picture(old[plan.name], plan), "utf-8")
    (HERE.parent / "structure.md").write_text("\n".join(_page(before, after)) + "\n", "utf-8")


def _read(document: Any) -> House:
    plans = tuple(
        Plan(plan["name"], tuple(Room(**room) for room in plan["rooms"]), tuple(map(tuple, plan["arrows"])))
        for plan in document.pop("plans")
    )
    return House(plans=plans, **{**document, "large": tuple(document["large"])})


def _page(before: House, after: House) -> Iterator[str]:
    yield "<!-- made by `make structure`; do not edit -->\n"
    yield "# Rooms and arrows\n"
    yield (
        f"The product's Python at commit {BEFORE}, before processes shared one vocabulary and turns and requests were\n"
        "objects, and when `make structure` was last run. A room is a package, or a part of one; it stands above all\n"
        "that it imports. Arrows that others imply are left out, new rooms are green, rooms that import each other in\n"
        "a circle red. The imports are those that `lint-imports` reads (grimp), without what protoc made; the\n"
        "numbers in a room are its files and their lines.\n"
    )
    yield "| | before | after |\n|---|---|---|"
    for name, then, now in _figures(before, after):
        yield f"| {name} | {then} | {now} |"
    yield f"\nFiles above {MOST_LINES} lines: {', '.join(f'`{path}`' for path in after.large) or 'none'}.\n"
    old = {plan.name: plan for plan in before.plans}
    for plan in after.plans:
        yield f"## {plan.name or 'The packages'}\n"
        yield f"![{plan.name or 'packages'}](structure/{plan.name or 'packages'}.svg)\n"
        yield f"{_counts(old[plan.name])} before, {_counts(plan)} after.\n"


def _figures(before: House, after: House) -> Iterator[tuple[str, object, object]]:
    for house in [(before, after)]:
        yield "files; lines", *(f"{each.modules}; {each.lines}" for each in house)
        yield "functions", *(each.functions for each in house)
        yield "lines of a function, median; 90th percentile", *(f"{each.median:g}; {each.p90:g}" for each in house)
        yield f"files above {MOST_LINES} lines", *(len(each.large) for each in house)
        yield "circles of rooms", *(sum(len(circles(plan)) for plan in each.plans) for each in house)


def _counts(plan: Plan) -> str:
    return f"{len(plan.rooms)} rooms on {len(floors(plan))} floors, {len(plan.arrows)} arrows"


if __name__ == "__main__":
    main()
