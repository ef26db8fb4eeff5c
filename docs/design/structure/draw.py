"""Draw plans as SVG: rooms on floors, each above all that it imports, with what they were before beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

import networkx as nx
from measure import Plan, Room

ROOM_HEIGHT, FLOOR_HEIGHT, GAP, MARGIN = 34, 78, 12, 16
LETTER = 6.6  # width of a character in the font below
STYLE = (
    "text{font:11px ui-monospace,monospace;fill:#222}.t{font-weight:bold;font-size:13px}.s{fill:#666;font-size:9px}"
    ".r{fill:#eef3f8;stroke:#7f97ad}.n{fill:#e3f4e3;stroke:#5d9a5d}.c{fill:#fdeaea;stroke:#c05050}"
    ".a{stroke:#9aa7b3;fill:none}.b{stroke:#c05050;fill:none}"
)
Places = Mapping[str, tuple[float, float, float]]
"""left, top and width of rooms"""


def picture(before: Plan, after: Plan) -> str:
    """Return an SVG with both plans side by side; rooms that are new are green, circles red."""
    old = {room.name for room in before.rooms}
    left, width, height = _half(before, "before", 0, frozenset(old))
    right, further, other = _half(after, "after", width, frozenset(old))
    size = f"{width + further:.0f} {max(height, other):.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(left)}{"".join(right)}</svg>\n'
    )


def circles(plan: Plan) -> list[set[str]]:
    """Return the groups of rooms that import each other around a circle."""
    return [group for group in nx.strongly_connected_components(_graph(plan)) if len(group) > 1]


def _graph(plan: Plan) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(room.name for room in plan.rooms)
    graph.add_edges_from((importer, name) for importer, name, _ in plan.arrows)
    return graph


def floors(plan: Plan) -> list[list[Room]]:
    """Return the rooms from the top floor down: a room is above each that it imports, but in a circle."""
    groups = nx.condensation(_graph(plan))
    level: dict[int, int] = {}
    for group in reversed(list(nx.topological_sort(groups))):
        level[group] = 1 + max((level[below] for below in groups.successors(group)), default=-1)
    of_room = {name: level[group] for group in groups for name in groups.nodes[group]["members"]}
    top = max(of_room.values(), default=0)
    return [[room for room in plan.rooms if of_room[room.name] == floor] for floor in range(top, -1, -1)]


def _half(plan: Plan, title: str, left: float, old: frozenset[str]) -> tuple[list[str], float, float]:
    """Return the shapes of a plan, its width and height."""
    rows = floors(plan)
    widths = [[max(len(room.name), 12) * LETTER + 14 for room in row] for row in rows]
    width = max(sum(row) + GAP * (len(row) - 1) for row in widths) + 2 * MARGIN
    places: dict[str, tuple[float, float, float]] = {}
    for floor, (row, sizes) in enumerate(zip(rows, widths, strict=True)):
        x = left + (width - sum(sizes) - GAP * (len(sizes) - 1)) / 2
        for room, size in zip(row, sizes, strict=True):
            places[room.name] = (x, 40 + floor * FLOOR_HEIGHT, size)
            x += size + GAP
    around = {name for group in circles(plan) for name in group}
    shapes = [f'<text class="t" x="{left + MARGIN:.0f}" y="22">{escape(plan.name or "all packages")}: {title}</text>']
    shapes += _arrows(plan, places, around)
    shapes += [shape for room in plan.rooms for shape in _room(room, places, room.name in around, room.name not in old)]
    return shapes, width, 40 + len(rows) * FLOOR_HEIGHT


def _arrows(plan: Plan, places: Places, around: set[str]) -> Iterator[str]:
    """Yield the arrows; of a plan without circles those alone that no others imply."""
    graph = _graph(plan)
    drawn = graph if around else nx.transitive_reduction(graph)
    for importer, name in sorted(drawn.edges):
        x, y, width = places[importer]
        to_x, to_y, to_width = places[name]
        start, end, bottom = x + width / 2, to_x + to_width / 2, y + ROOM_HEIGHT
        bend = (bottom + to_y) / 2
        kind = "b" if {importer, name} <= around else "a"
        curve = f"M{start:.0f} {bottom:.0f}C{start:.0f} {bend:.0f} {end:.0f} {bend:.0f} {end:.0f} {to_y:.0f}"
        yield f'<path class="{kind}" d="{curve}"/>'


def _room(room: Room, places: Places, in_circle: bool, is_new: bool) -> Iterator[str]:
    x, y, width = places[room.name]
    kind = "c" if in_circle else "n" if is_new else "r"
    yield f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{ROOM_HEIGHT}" rx="4"/>'
    yield f'<text x="{x + 7:.0f}" y="{y + 15:.0f}">{escape(room.name)}</text>'
    size = f"{room.modules} file{'' if room.modules == 1 else 's'}, {room.lines}"
    yield f'<text class="s" x="{x + 7:.0f}" y="{y + 27:.0f}">{size}</text>'
