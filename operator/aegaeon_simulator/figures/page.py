"""Generates docs/evaluation.md from the results: figures, crossings, claims, and where our policy is worse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aegaeon_simulator.figures import comparison
from aegaeon_simulator.figures.book import Book
from aegaeon_simulator.figures.catalog import BASELINES, FORMS, OURS, panels
from aegaeon_simulator.figures.claims import Verdict, oracle, published, verdicts
from aegaeon_simulator.figures.notes import NOTES, WHY
from aegaeon_simulator.settings import POLICIES

_HEADINGS = {
    "11": "Figure 11: rates and models",
    "12": "Figure 12: longer inputs and outputs",
    "13": "Figure 13: tighter objectives",
    "14": "Figure 14: where latency goes",
    "17": "Figure 17: other devices",
    "shapes": "Traces with real shapes",
}

# What the paper says and the table of claims does not.
_ELSEWHERE = """Not in the table: what the paper says of its engine (fragmentation, load and switch times), which
`make bench` measures on ours ([engine-memory.md](engine-memory.md)); quotas, the group size and the estimates' forms,
which are tests; and what only its curves show, as their values are not published."""


def page(book: Book, folder: str) -> str:
    """Markdown; `folder` is where the plots are, as seen from the page."""
    return "\n".join(_lines(book, folder)).rstrip() + "\n"


def _lines(book: Book, folder: str) -> Iterator[str]:
    yield from ("# Evaluation", "", "<!-- made by `make figures`; do not edit -->", "")
    yield from _how(book)
    yield from ("## Claims", "", *_claims(verdicts(book)), "", _ELSEWHERE, "")
    yield from ("## The artifact's own points", "", *_oracle(book), "")
    yield from ("## Crossings of 90 %", "", *_crossings(book), "")
    yield from ("## Against the best baseline", "", *_behind(book), "")
    yield from ("## Figure 4: active models", "", _image("Figure 4", folder, "4"), "")
    for figure, heading in _HEADINGS.items():
        yield from (f"## {heading}", "")
        yield from _panels(book, figure, folder)
    yield from ("## Figure 15: what a switch waits", "", *_switches(book), "", _image("Figure 15", folder, "15"), "")
    yield from ("## What to bear in mind", "", *(f"- {note}" for note in NOTES), *_derived(book))


def _how(book: Book) -> Iterator[str]:
    run = book.run
    yield f"Poisson arrivals for {run['duration_s']:g} s, {run['seeds']} seed(s); 16 GPUs unless said otherwise."
    yield "Objectives: TTFT 10 s, TBT 0.1 s. Three forms of attainment: *token*, *request*, *time*; a request that was"
    yield "never served counts zero in each. `make figures` runs everything again and writes this page; the JSON behind"
    yield "each figure is beside it. Curves are means over the seeds, shaded from the least to the most of them."
    yield ""
    missing = [panel.name for panel in panels(run["duration_s"]) if panel.name not in book.panels]
    if missing:
        yield from (f"Not run yet, and missing below: {', '.join(missing)}.", "")
    older = [name for name, panel in book.panels.items() if not panel["curves"].keys() >= set(POLICIES)]
    if older:
        yield "Of an earlier run (300 s), without the policies that came since and with the others as they were then:"
        yield from (f"{', '.join(older)}.", "")


def _image(alt: str, folder: str, name: str) -> str:
    return f"![{alt}]({folder}/figure-{name}.svg)"


def _panels(book: Book, figure: str, folder: str) -> Iterator[str]:
    for name, panel in book.panels.items():
        if panel["figure"] == figure:
            yield from (_image(f"{name}: {panel['title']}", folder, name), "")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    names = list(head)
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _claims(rows: list[Verdict]) -> Iterator[str]:
    yield from _table(
        ("claim", "where", "published", "ours", "within tolerance, or why not"),
        ((v.statement, v.where, v.published, _number(v.ours), _judged(v)) for v in rows),
    )


def _judged(verdict: Verdict) -> str:
    if verdict.within is None:
        return "no number: a policy was not run, or never falls below 90 % where it was (crossings below)"
    return "yes" if verdict.within else f"no: {WHY.get(verdict.id, 'the reason is not known')}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def _oracle(book: Book) -> Iterator[str]:
    yield "Attainment in percent, *time* form, two points of tolerance."
    yield ""
    yield from _table(
        ("panel", "policy", "models", "published", "ours", "within"),
        (
            (o.panel, o.policy, f"{o.load:g}", f"{o.published:g}", _number(o.ours), _mark(o.within))
            for o in oracle(book)
        ),
    )
    yield ""
    yield "Crossings, two models of tolerance."
    yield ""
    yield from _table(("panel", "policy", "form", "published", "ours", "within"), _artifact_crossings(book))


def _artifact_crossings(book: Book) -> Iterator[tuple[str, ...]]:
    for panel, policies in published()["artifact_crossings"].items():
        for policy, forms in policies.items():
            for form, value in forms.items():
                ours = book.crossing(panel, policy, form)
                within = None if ours is None else abs(ours - value) <= 2.0
                yield (panel, policy, form, f"{value:g}", _number(ours), _mark(within))


def _mark(within: bool | None) -> str:
    return "–" if within is None else "yes" if within else "no"


def _crossings(book: Book) -> Iterator[str]:
    yield "Load at which attainment first falls below 90 %, as token / request / time, on a straight line between the"
    yield "loads that were run. `>`: not even at the highest load that was run; `<`: already at the lowest."
    yield ""
    policies = (OURS, *BASELINES)
    rows = []
    for name, panel in book.panels.items():
        if panel["figure"] != "14":
            rows.append((name, *(" / ".join(_crossed(book, name, p, f) for f in FORMS) for p in policies)))
    yield from _table(("panel", *policies), rows)


def _crossed(book: Book, name: str, policy: str, form: str) -> str:
    line = book.line(name, policy, form)
    if not line:
        return "–"
    at = book.crossing(name, policy, form)
    if at is None:
        return f">{line[-1][0]:g}"
    return f"<{at:g}" if at == line[0][0] else f"{at:.3g}" if at < 100 else f"{at:.0f}"


def _behind(book: Book) -> Iterator[str]:
    """Every load at which ours is below a baseline by more than half a point, in any form."""
    comparisons = comparison.points(book)
    rows = [p for p in comparisons if p.behind]
    yield f"`{OURS}` beside the best of all other policies in Figures 11 to 13, 17 and the traces, in each form: at the"
    yield "same load, on the straight line between two loads, or at the last load where a baseline's curve had ended."
    counted = f"{len(comparisons)} comparisons, in {len(rows)} of them"
    yield f"{counted} it is more than half a point below (see standing.json)."
    yield ""
    if rows:
        yield from _table(
            ("panel", "load", "form", OURS, "best", "by"),
            ((p.panel, f"{p.load:g}", p.form, f"{100 * p.ours:.1f}", f"{100 * p.best:.1f}", p.by) for p in rows),
        )


def _switches(book: Book) -> Iterator[str]:
    yield "32 models at 0.1 req/s; a switch within 10 ms found the weights there."
    yield ""
    rows = []
    for policy in book.panels.get("14-0.1", {}).get("curves", {}):
        switches = book.value("14-0.1", policy, 32, "switches")
        if switches:
            hits = book.value("14-0.1", policy, 32, "prefetch_hits") / switches
            shares = [f"{100 * (book.share('14-0.1', policy, 32, f) or 0):.1f}" for f in FORMS]
            rows.append((policy, f"{switches:.0f}", f"{100 * hits:.0f} %", " / ".join(shares)))
    yield from _table(("policy", "switches", "within 10 ms", "on time (token / request / time)"), rows)


def _derived(book: Book) -> Iterator[str]:
    """Constants that are not measured, by device."""
    by_device = {panel["device"]: panel["derived"] for panel in book.panels.values()}
    for device in sorted(by_device):
        yield f"- Derived or assumed constants of `{device}`: {'; '.join(by_device[device])}."
