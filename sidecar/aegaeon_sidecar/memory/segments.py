"""The host tier's files: one per life of an instance, in a folder that the sidecars of a node share.

The name carries instance and incarnation, so that a restarted instance finds and removes what a killed one left.
"""

from __future__ import annotations

from pathlib import Path

from aegaeon_native import NativeError, SlabPool
from aegaeon_sidecar.errors import UnknownError

_SUFFIX = ".kv"


def segment_path(folder: Path, instance: str, incarnation: str) -> Path:
    """Where this life of the instance keeps its host tier."""
    return folder / f"{instance}@{incarnation}{_SUFFIX}"


def remove_stale(folder: Path, instance: str) -> list[Path]:
    """Remove what earlier lives of this instance left behind; returns the files. An instance runs once at a time."""
    stale = sorted(path for path in folder.glob(f"*{_SUFFIX}") if path.name.rpartition("@")[0] == instance)
    for path in stale:
        path.unlink(missing_ok=True)
    return stale


class Attachments:
    """Other sidecars' host tiers, attached when first needed. Used by one lane alone, hence without a lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pools: dict[str, SlabPool] = {}

    def pool(self, segment: str) -> SlabPool:
        """The pool of this segment file. Raises UnknownError when it is gone or no segment."""
        self._drop_removed()
        if segment not in self._pools:
            path = self._folder / segment
            if path.parent != self._folder or not path.is_file():
                raise UnknownError(f"segment {segment} is not in {self._folder}; its sidecar has ended")
            try:
                self._pools[segment] = SlabPool.attach(str(path))
            except NativeError as error:
                raise UnknownError(f"segment {segment} cannot be attached: {error}") from error
        return self._pools[segment]

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _drop_removed(self) -> None:
        for segment in [name for name in self._pools if not (self._folder / name).exists()]:
            self._pools.pop(segment).close()
