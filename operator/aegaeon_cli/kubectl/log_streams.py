"""Logs of a pool's pods: each by a thread, since the client blocks; pods that come while they are followed, too."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aegaeon_cli.errors import CliError, NoAnswerError
from aegaeon_cli.kubectl.access import NotThereError, Where, client_errors
from aegaeon_cli.kubectl.log_lines import At, Line, Window, parse
from aegaeon_cli.kubectl.pools import Pod, pods
from aegaeon_operator.reconcile.cluster.facts import Key

_TIMEOUT = (5.0, 3600.0)  # seconds to connect, and until the next line; then a log that is followed is asked for again
_LIST_EVERY_S = 5.0
_AGAIN_S = 1.0
_WINDOW_S = 0.5
_CHUNK = 64 << 10


@dataclass(frozen=True, slots=True)
class Part:
    """How much of each log: the last `since_s` seconds, the last `tail` lines; None: all of it."""

    since_s: int | None = None
    tail: int | None = None


def whole(where: Where, key: Key, pod: Pod, part: Part) -> list[Line]:
    """What a pod has said, and its container before it was started again, as far as its node has kept that.

    Raises CliError.
    """
    found: list[Line] = []
    if pod.restarts:
        try:
            found += read(where, key, pod, part, previous=True)
        except CliError:  # it is gone; what else is wrong the next call says
            found = []
    return [*found, *read(where, key, pod, part)]


def read(where: Where, key: Key, pod: Pod, part: Part, follow: bool = False, previous: bool = False) -> Iterator[Line]:
    """Lines as they come. Raises CliError; NotThereError when the pod is gone."""
    with client_errors(f"log of pod {key.namespace}/{pod.name}"):
        answer = where.core.read_namespaced_pod_log(
            *(pod.name, key.namespace),
            container=pod.container or None,
            timestamps=True,
            since_seconds=part.since_s,
            tail_lines=part.tail,
            _preload_content=False,
            _request_timeout=_TIMEOUT,
            follow=follow,
            previous=previous,
        )
        yield from _lines(pod.name, answer)


def _lines(pod: str, answer: Any) -> Iterator[Line]:
    rest = b""
    for chunk in answer.stream(_CHUNK):
        *whole_ones, rest = (rest + chunk).split(b"\n")
        yield from (parse(pod, one.decode("utf-8", "replace")) for one in whole_ones if one)
    if rest:
        yield parse(pod, rest.decode("utf-8", "replace"))


class Follower:
    """Logs of all pods of a pool as one, without an end. `choose` picks the lines of one pod's log."""

    def __init__(self, where: Where, key: Key, part: Part, choose: Callable[[Iterable[Line]], Iterator[Line]]) -> None:
        self._where, self._key, self._part, self._choose = where, key, part, choose
        self._arrived: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._followed: set[str] = set()
        self._window = Window(_WINDOW_S)

    def lines(self) -> Iterator[Line]:
        """Raises CliError when the first list of pods fails; later ones are tried again."""
        self._begin(pods(self._where, self._key), self._part)
        listed = time.monotonic()
        while True:
            self._take()
            yield from self._window.due(time.monotonic())
            if time.monotonic() - listed >= _LIST_EVERY_S:
                listed = time.monotonic()
                self._look_again()

    def _take(self) -> None:
        try:
            line = self._arrived.get(timeout=_WINDOW_S / 5)
            while True:
                self._window.put(line, time.monotonic())
                line = self._arrived.get_nowait()
        except queue.Empty:
            return

    def _look_again(self) -> None:
        try:
            there = pods(self._where, self._key)
        except NoAnswerError:
            return
        self._followed &= {one.name for one in there}
        self._begin(there, Part())

    def _begin(self, there: Iterable[Pod], part: Part) -> None:
        for pod in there:
            if pod.name not in self._followed and pod.phase != "Pending":
                self._followed.add(pod.name)
                threading.Thread(target=self._follow, args=(pod, part), daemon=True).start()

    def _follow(self, pod: Pod, part: Part) -> None:
        for line in self._choose(self._endless(pod, part)):
            self._arrived.put(line)

    def _endless(self, pod: Pod, part: Part) -> Iterator[Line]:
        """Until the pod is gone: a stream ends with its container, and when the API server ends it."""
        last: At | None = None
        while True:
            try:
                for line in read(self._where, self._key, pod, part, follow=True):
                    if last is None or line.at > last:
                        last = line.at
                        yield line
            except NotThereError:
                return
            except CliError:  # the container is being started, or the API server is unavailable
                pass
            time.sleep(_AGAIN_S)  # in a thread of this pod alone; at once would be a storm of calls
            if last is not None:
                part = Part(since_s=int((datetime.now(UTC) - last[0]).total_seconds()) + 2)
