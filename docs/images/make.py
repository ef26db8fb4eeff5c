"""Takes the README's picture: what `aegaeon top` shows of the quickstart while it is being talked to. Nothing is drawn.

.venv/bin/python docs/images/make.py      (in the repository's root; writes docs/images/top.svg)
"""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path

from rich.console import Console, RenderableType
from rich.terminal_theme import MONOKAI

from aegaeon_cli.demo.stack import Stack
from aegaeon_cli.demo.traffic import Traffic, conversations
from aegaeon_cli.folders import models_folder
from aegaeon_cli.models import make_models, questions
from aegaeon_cli.pool_view import PoolView
from aegaeon_cli.status import watch_status
from aegaeon_proto.v1.gateway_pb2 import PoolStatus

QUICKSTART = Path("examples/quickstart")
PICTURE = Path(__file__).with_name("top.svg")
COLUMNS = 126
INTERVAL_S = 0.5  # as `aegaeon top`
_WEB_FONT = re.compile(r"@font-face\s*{.*?}\s*", re.DOTALL)


def main() -> None:
    """Make the models if need be, run the stack with its traffic, keep the fullest picture."""
    folder = models_folder()
    make_models(folder, lambda _line: None)
    PICTURE.write_text(svg(asyncio.run(fullest(folder))), "utf-8")


async def fullest(models: Path) -> RenderableType:
    """The picture of the moment in which most models and sequences were at work."""
    async with Stack(QUICKSTART, models) as stack:
        traffic = Traffic(stack.state.url)
        talking = asyncio.create_task(traffic.run(conversations(questions(models), clients=3, rounds=8)))
        best, picture, view = (-1, -1), None, PoolView()
        async for status in watch_status(stack.state.scheduler, INTERVAL_S):
            shown = view.show(status)
            if (moment := fullness(status)) >= best:
                best, picture = moment, shown
            if talking.done():
                break
        await talking
        await traffic.close()
    assert picture is not None
    return picture


def fullness(status: PoolStatus) -> tuple[int, int]:
    """Models at work, and engines that run one or load one; later moments win among equals."""
    engines = sum(bool(engine.running) + bool(engine.loading) for engine in status.instances)
    return sum(model.running > 0 for model in status.models), engines


def svg(picture: RenderableType) -> str:
    """As a picture that needs no font from elsewhere: cells are 12.2 pixels wide, glyphs of common fonts 12.04."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(picture)
    drawn = _WEB_FONT.sub("", console.export_svg(title="aegaeon top", theme=MONOKAI))
    return drawn.replace("font-size: 20px;", "font-size: 20px; letter-spacing: 0.16px;", 1)


if __name__ == "__main__":
    main()
