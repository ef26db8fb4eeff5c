"""A thread that looks at something again and again for the length of a `with`."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Follower(ABC):
    """In a `with`: calls `look` every `every_s` seconds."""

    def __init__(self, name: str, every_s: float) -> None:
        self._every_s = every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()

    @abstractmethod
    def look(self) -> None:
        """Once. What it raises ends the thread."""

    def _follow(self) -> None:
        while not self._end.wait(self._every_s):
            self.look()
