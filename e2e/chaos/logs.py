"""Logs of all pods, of those that are gone, too: a second name for each file, which outlives kubelet's."""

from __future__ import annotations

import glob
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from e2e.cluster.layout import Layout

_EVERY_S = 2.0


class Logs:
    """In a `with`: collects them below the cluster's own folder; `save` copies them out of it."""

    def __init__(self, layout: Layout, namespaces: tuple[str, ...]) -> None:
        self._sources = [node.on_disk("/var/log/pods") for node in layout.nodes]
        self._kept = layout.root / "kept-logs"
        self._namespaces = namespaces
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="logs", daemon=True)

    def __enter__(self) -> Self:
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir(parents=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()
        shutil.rmtree(self._kept, ignore_errors=True)

    def save(self, folder: Path) -> None:
        self._keep()
        shutil.copytree(self._kept, folder, dirs_exist_ok=True)

    def _follow(self) -> None:
        while not self._end.wait(_EVERY_S):
            self._keep()

    def _keep(self) -> None:
        """NAMESPACE_POD_UID/CONTAINER/NUMBER.log; a rotated one is there under its first name already."""
        for source in self._sources:
            for file in map(Path, glob.iglob(f"{source}/*/*/*.log")):  # Path.glob fails on a folder that vanishes
                pod, container = file.parts[-3:-1]
                if pod.partition("_")[0] in self._namespaces:
                    with suppress(FileExistsError, FileNotFoundError):  # kept before, or gone with its pod
                        os.link(file, self._kept / f"{pod}_{container}_{file.name}")
