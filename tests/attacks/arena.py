"""A stack with the innocent tenant on it that is made anew after an attack that did harm or did not end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from attacks.campaign import Outcome, Tbt, attack, measure_quiet
from attacks.ground import INNOCENT_MODELS, Ground, standing
from attacks.innocent import Innocent
from attacks.table import Attack
from stack.pods import KEY


class Arena:
    """`async with` it. The stack stands from the first attack on."""

    def __init__(self, models: Mapping[str, Path]) -> None:
        self._models = models
        self._exits = AsyncExitStack()
        self._standing: tuple[Ground, Innocent] | None = None
        self._quiet: Tbt | None = None

    async def __aenter__(self) -> Arena:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.fall()

    async def fall(self) -> None:
        """End the stack; the next attack finds a new one."""
        self._standing = self._quiet = None
        await self._exits.aclose()

    def forget_quiet(self) -> None:
        """The next attack is compared with a quiet time of its own."""
        self._quiet = None

    async def attack(self, attacks: Sequence[Attack], *, quiet_s: float, seconds: float, pace: float) -> Outcome:
        """See campaign.attack. Whatever it raises ends the stack. A stack's attacks share its first quiet time."""
        good = self._models[INNOCENT_MODELS[0]]
        try:
            if self._standing is None:
                ground = await self._exits.enter_async_context(standing(self._models))
                innocent = Innocent(ground.url, KEY, INNOCENT_MODELS)
                self._standing = ground, await self._exits.enter_async_context(innocent)
            self._quiet = self._quiet or await measure_quiet(self._standing[1], quiet_s)
            outcome = await attack(*self._standing, attacks, good, quiet=self._quiet, seconds=seconds, pace=pace)
        except BaseException:
            await self.fall()
            raise
        if outcome.harmed:
            await self.fall()
        return outcome
