"""`aegaeon figures`: reproduces the paper's figures, draws them, and writes the page of results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aegaeon_cli.errors import BadFileError, CliError

if TYPE_CHECKING:
    from aegaeon_simulator.figures.book import Book
    from aegaeon_simulator.figures.runner import Progress

_FOLDER = click.Path(file_okay=False, path_type=Path)
_PAGE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--data", type=_FOLDER, default="benchmarks/data", show_default=True, help="Folder of the traces.")
@click.option("--out", type=_FOLDER, default="docs/figures", show_default=True, help="Folder for plots and JSON.")
@click.option("--page", type=_PAGE, default="docs/evaluation.md", show_default=True, help="The page to write.")
@click.option(
    "--cache",
    type=_FOLDER,
    default="build/figures",
    show_default=True,
    help="Folder of finished results, to resume from.",
)
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, metavar="K", help="Means over K seeds.")
@click.option("--duration", type=click.FloatRange(1.0), default=300.0, show_default=True, help="Seconds of arrivals.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes.  [default: one per core]")
@click.option("--only", multiple=True, metavar="PANEL", help="Run only this panel; repeatable. Adds to --out.")
@click.option("--draw", "only_draw", is_flag=True, help="Run nothing: make plots and page from the existing JSON.")
def figures(
    data: Path,
    out: Path,
    page: Path,
    cache: Path,
    seeds: int,
    duration: float,
    workers: int | None,
    only: tuple[str, ...],
    only_draw: bool,
) -> None:
    """Reproduce figures 4, 11 to 15 and 17 of the paper and traces with real shapes, with every policy.

    \b
    Example:
      aegaeon figures --only 11a --duration 60 --out /tmp/figures --page /tmp/evaluation.md
    """
    from aegaeon_simulator.figures import book as books

    if not only_draw:
        books.write(_run(data, cache, seeds, duration, workers, only), out)
    _publish(books.read(out), out, page)


def _run(data: Path, cache: Path, seeds: int, duration: float, workers: int | None, only: tuple[str, ...]) -> Book:
    from aegaeon_simulator.figures.actives import figure_4
    from aegaeon_simulator.figures.book import book_of
    from aegaeon_simulator.figures.cache import Cache
    from aegaeon_simulator.figures.catalog import panels
    from aegaeon_simulator.figures.runner import Runner

    available = panels(duration)
    names = [panel.name for panel in available]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise CliError(f"--only {unknown[0]}: no such panel; choose one of {', '.join(names)}")
    chosen = [panel for panel in available if not only or panel.name in only]
    runner = Runner(Cache(cache, data), data, workers)
    with _progress() as progress:
        curves = runner.run(chosen, seeds, progress)
    return book_of(curves, figure_4(), {"duration_s": duration, "seeds": seeds})


def _publish(book: Book, out: Path, page: Path) -> None:
    from aegaeon_simulator.figures import comparison
    from aegaeon_simulator.figures.book import write_json
    from aegaeon_simulator.figures.draw import draw
    from aegaeon_simulator.figures.page import page as written

    names = draw(book, out)
    write_json(out / "standing.json", comparison.report(book))
    try:
        page.write_text(written(book, out.name), "utf-8")
    except OSError as error:
        raise BadFileError(f"--page {page}: cannot be written ({error})") from error
    click.echo(f"{len(names)} plots in {out}, the page is {page}")
    click.echo(comparison.sentence(book))


@contextmanager
def _progress() -> Iterator[Progress]:
    """A progress bar over curves; hidden when standard error is not a terminal."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("curves", total=None)
        yield lambda done, total, doing: bar.update(
            task, completed=done, total=total, description=f"{done} of {total} curves; {doing}"
        )
