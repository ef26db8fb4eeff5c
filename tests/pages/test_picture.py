"""README's picture is of the run that the text below it describes: the quickstart's engines and policy."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CELL = re.compile(r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>')


def lines(picture: str) -> Iterator[str]:
    """Of the terminal that it shows, from top to bottom."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in CELL.findall(picture):
        rows.setdefault(float(y), []).append((float(x), html.unescape(text).replace("\xa0", " ")))
    for _, cells in sorted(rows.items()):
        yield "".join(text for _, text in sorted(cells))


def test_the_picture_shows_the_quickstart() -> None:
    shown = list(lines((ROOT / "docs" / "images" / "top.svg").read_text("utf-8")))
    spec = yaml.safe_load((ROOT / "examples" / "quickstart" / "gpupool.yaml").read_text("utf-8"))["spec"]
    assert any(f"policy {spec['scheduling']['policy']} " in line for line in shown)
    mib = re.fullmatch(r"(\d+)Mi", spec["memory"]["deviceBytes"])
    assert mib is not None
    slabs = int(mib[1]) * 1024 // int(spec["memory"]["slabSize"].removesuffix("Ki"))
    engines = [line for line in shown if re.search(rf" unified .*/{slabs}\b", line)]
    assert len(engines) == spec["engines"]["replicas"], shown
    text = (ROOT / "README.md").read_text("utf-8")
    assert f"Two engines of {mib[1]} MiB" in text.replace("\n", " ")
