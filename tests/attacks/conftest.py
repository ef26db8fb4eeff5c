"""The stack that attacks are made on, one for all tests of this folder as long as nothing harms it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from attacks.arena import Arena
from attacks.ground import GOOD_MODELS

from aegaeon_cli.folders import models_folder
from aegaeon_cli.models import make_models


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def arena() -> AsyncIterator[Arena]:
    folder = models_folder()
    make_models(folder, print)  # trained once, like for the quickstart
    async with Arena({name: folder / name for name in GOOD_MODELS}) as made:
        yield made
