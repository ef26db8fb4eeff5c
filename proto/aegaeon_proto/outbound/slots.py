"""Threads for fetches: one each, a few of the same source at a time; sources do not wait for each other."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_AT_A_TIME = 4  # of one source; more rarely increase its rate


class Slots:
    """Runs up to `at_a_time` jobs of a source, in the order in which they came, urgent ones before others; other
    sources never wait for them.

    There is no bound over all sources: slow ones could use it up for every other. A waiting thread costs
    some 100 KB; how many models there are is bounded by the manifests. Jobs raise nothing.
    """

    def __init__(self, name: str, at_a_time: int = _AT_A_TIME) -> None:
        self._name = name
        self._at_a_time = at_a_time
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        self._urgent: dict[str, deque[Callable[[], None]]] = {}
        self._threads: dict[str, set[threading.Thread]] = {}
        self._stopped = False

    def submit(self, source: str, job: Callable[[], None], *, urgent: bool = False) -> None:
        """Run the job when one of its source's slots is free."""
        with self._lock:
            if self._stopped:
                return
            threads = self._threads.setdefault(source, set())
            if len(threads) >= self._at_a_time:
                (self._urgent if urgent else self._waiting).setdefault(source, deque()).append(job)
                return
            thread = threading.Thread(target=self._run, args=(source, job), name=f"{self._name}-{source}", daemon=True)
            threads.add(thread)
        thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Start no more; True when running jobs ended in time. Their owners cancel them."""
        with self._lock:
            self._stopped = True
            self._waiting.clear()
            self._urgent.clear()
            running = [thread for threads in self._threads.values() for thread in threads]
        deadline_s = time.monotonic() + timeout_s
        for thread in running:
            if thread.ident is not None:
                thread.join(max(deadline_s - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in running)

    def _run(self, source: str, job: Callable[[], None] | None) -> None:
        try:
            while job is not None:
                job()
                job = self._next(source)
        finally:
            if job is not None:
                self._next(source, last=True)

    def _next(self, source: str, *, last: bool = False) -> Callable[[], None] | None:
        """The next job of a source; None when this thread ends."""
        with self._lock:
            of = self._urgent if source in self._urgent else self._waiting
            waiting = of.get(source)
            if waiting and not last:
                job = waiting.popleft()
                if not waiting:
                    del of[source]
                return job
            threads = self._threads[source]
            threads.discard(threading.current_thread())
            if not threads:
                del self._threads[source]
            return None


def hub_slot(repository: str) -> str:
    """Sources with the same name share what they answer with, and so take turns; others never wait for each other."""
    return f"hub:{repository.partition('/')[0]}"


def s3_slot(endpoint: str, bucket: str) -> str:
    """See hub_slot."""
    return f"s3:{_server(endpoint) or bucket}"


def http_slot(url: str) -> str:
    """See hub_slot."""
    return f"http:{_server(url)}"


def _server(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].lower()
