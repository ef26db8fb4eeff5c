"""Logs of a pool's pods, including pods that start while logs are followed. Each is read by a thread, as the client
blocks."""

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
    """The part of each log to read: the last `since_s` seconds, the last `tail` lines; None: no limit."""

    since_s: int | None = None
    tail: int | None = None


def complete_log(where: Where, key: Key, pod: Pod, part: Part) -> list[Line]:
    """The log of a pod and of its container before the last restart, as far as the node has kept it.

    Empty for a pod that has not started or no longer exists. Raises CliError.
    """
    if pod.phase == "Pending":
        return []
    previous_lines: list[Line] = []
    if pod.restarts and not pod.waits:  # until the next start, both logs are the same one
        try:
            previous_lines += read(where, key, pod, part, previous=True)
        except CliError:  # that log is gone; the next call reports any other error
            previous_lines = []
    try:
        return [*previous_lines, *read(where, key, pod, part)]
    except NotThereError:
        return previous_lines


def read(where: Where, key: Key, pod: Pod, part: Part, follow: bool = False, previous: bool = False) -> Iterator[Line]:
    """Yield lines as they arrive. Raises CliError: NotThereError when the pod is gone, RefusedError without
    permission."""
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
        *complete, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in complete if line)
    if rest:
        yield rest.decode("utf-8", "replace")


class Follower:
    """Endless logs of all pods of a pool, merged. `choose` selects the lines of one pod's log."""

    def __init__(self, where: Where, key: Key, part: Part, choose: Callable[[Iterable[Line]], Iterator[Line]]) -> None:
        self._where, self._key, self._part, self._choose = where, key, part, choose
        self._arrived: queue.SimpleQueue[Line | RefusedError] = queue.SimpleQueue()
        self._followed: set[str] = set()
        self._window = Window(_WINDOW_S)
        self._ended = threading.Event()  # no lines are taken any more

    def lines(self) -> Iterator[Line]:
        """Yield lines. Raises CliError when the first list of pods fails (later ones are retried), RefusedError where
        the user may not read logs."""
        self._begin(pods(self._where, self._key), self._part)
        listed = time.monotonic()
        try:
            while True:
                self._take()
                yield from self._window.due(time.monotonic())
                if time.monotonic() - listed >= _LIST_EVERY_S:
                    listed = time.monotonic()
                    self._look_again()
        finally:
            self._ended.set()

    def _take(self) -> None:
        try:
            arrival = self._arrived.get(timeout=_WINDOW_S / 5)
            while True:
                if isinstance(arrival, RefusedError):
                    raise arrival
                self._window.put(arrival, time.monotonic())
                arrival = self._arrived.get_nowait()
        except queue.Empty:
            return

    def _look_again(self) -> None:
        try:
            current = pods(self._where, self._key)
        except CliError:  # the API server is unavailable, or overloaded
            return
        self._begin(current, Part())

    def _begin(self, current: Iterable[Pod], part: Part) -> None:
        for pod in current:
            if pod.name not in self._followed and pod.phase != "Pending":
                self._followed.add(pod.name)
                threading.Thread(target=self._follow, args=(pod, part), name=f"log of {pod.name}", daemon=True).start()

    def _follow(self, pod: Pod, part: Part) -> None:
        try:
            for line in self._choose(self._endless(pod, part)):
                self._arrived.put(line)
        except RefusedError as error:
            self._arrived.put(error)
        finally:
            self._followed.discard(pod.name)  # the next pod of a StatefulSet has the same name

    def _endless(self, pod: Pod, part: Part) -> Iterator[Line]:
        """Yield lines until the pod is gone: a stream ends with its container, or when the API server ends it."""
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
            if self._ended.wait(_AGAIN_S):  # retrying at once would flood the API server
                return
            if last is not None:
                part = Part(since_s=max(0, int((datetime.now(UTC) - last[0]).total_seconds())) + _SKEW_S)
