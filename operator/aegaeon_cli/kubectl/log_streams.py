"""Logs of a pool's pods: each by a thread, since the client blocks; pods that come while they are followed, too."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aegaeon_cli.errors import CliError, RefusedError
from aegaeon_cli.kubectl.access import NotThereError, Where, client_errors
from aegaeon_cli.kubectl.log_lines import At, Line, Window, parse
from aegaeon_cli.kubectl.pools import Pod, pods
from aegaeon_operator.reconcile.cluster.facts import Key

_TIMEOUT = (5.0, 3600.0)  # seconds to connect, and until the next line; then a log that is followed is asked for again
_LIST_EVERY_S = 5.0
_AGAIN_S = 1.0
_SKEW_S = 60  # clocks of nodes differ from ours; lines that come twice are known by their times
_WINDOW_S = 0.5
_CHUNK = 64 << 10


@dataclass(frozen=True, slots=True)
class Part:
    """How much of each log: the last `since_s` seconds, the last `tail` lines; None: all of it."""

    since_s: int | None = None
    tail: int | None = None


def whole(where: Where, key: Key, pod: Pod, part: Part) -> list[Line]:
    """What a pod has said, and its container before it was started again, as far as its node has kept that.

    Nothing of a pod that has not started, or is gone. Raises CliError.
    """
    if pod.phase == "Pending":
        return []
    found: list[Line] = []
    if pod.restarts and not pod.waits:  # until the next start, both logs are the same one
        try:
            found += read(where, key, pod, part, previous=True)
        except CliError:  # it is gone; what else is wrong the next call says
            found = []
    try:
        return [*found, *read(where, key, pod, part)]
    except NotThereError:
        return found


def read(where: Where, key: Key, pod: Pod, part: Part, follow: bool = False, previous: bool = False) -> Iterator[Line]:
    """Lines as they come. Raises CliError: NotThereError when the pod is gone, RefusedError without the right to it."""
    with client_errors(f"log of pod {key.namespace}/{pod.name}"):
        answer: Any = where.core.read_namespaced_pod_log(
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
        for raw in _raw_lines(answer.stream(_CHUNK)):
            try:
                yield parse(pod.name, raw)
            except ValueError as error:  # in place of a log that is gone, kubelets send a sentence
                raise CliError(f"log of pod {key.namespace}/{pod.name}: {raw}") from error


def _raw_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *whole_ones, rest = (rest + chunk).split(b"\n")
        yield from (one.decode("utf-8", "replace") for one in whole_ones if one)
    if rest:
        yield rest.decode("utf-8", "replace")


class Follower:
    """Logs of all pods of a pool as one, without an end. `choose` picks the lines of one pod's log."""

    def __init__(self, where: Where, key: Key, part: Part, choose: Callable[[Iterable[Line]], Iterator[Line]]) -> None:
        self._where, self._key, self._part, self._choose = where, key, part, choose
        self._arrived: queue.SimpleQueue[Line | RefusedError] = queue.SimpleQueue()
        self._followed: set[str] = set()
        self._window = Window(_WINDOW_S)

    def lines(self) -> Iterator[Line]:
        """Raises CliError when the first list of pods fails, later ones are tried again; RefusedError where logs may
        not be read."""
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
            one = self._arrived.get(timeout=_WINDOW_S / 5)
            while True:
                if isinstance(one, RefusedError):
                    raise one
                self._window.put(one, time.monotonic())
                one = self._arrived.get_nowait()
        except queue.Empty:
            return

    def _look_again(self) -> None:
        try:
            there = pods(self._where, self._key)
        except CliError:  # the API server is unavailable, or overloaded
            return
        self._begin(there, Part())

    def _begin(self, there: Iterable[Pod], part: Part) -> None:
        for pod in there:
            if pod.name not in self._followed and pod.phase != "Pending":
                self._followed.add(pod.name)
                threading.Thread(target=self._follow, args=(pod, part), daemon=True).start()

    def _follow(self, pod: Pod, part: Part) -> None:
        try:
            for line in self._choose(self._endless(pod, part)):
                self._arrived.put(line)
        except RefusedError as error:
            self._arrived.put(error)
        finally:
            self._followed.discard(pod.name)  # the next pod of a StatefulSet has the same name

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
            except RefusedError:
                raise
            except CliError:  # the container is being started, or the API server is unavailable
                pass
            time.sleep(_AGAIN_S)  # in a thread of this pod alone; at once would be a storm of calls
            if last is not None:
                part = Part(since_s=max(0, int((datetime.now(UTC) - last[0]).total_seconds())) + _SKEW_S)
