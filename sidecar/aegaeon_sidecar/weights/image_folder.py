"""The files of the host cache: images by content hash, drafts, and links from files to their content.

Links (`IDENTITY.known`) record the content of files that were read before, empty files (`KEY.proved`) what models were
admitted by. A process that reads or changes any of
these holds the folder's lock.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from aegaeon_native.leases import locked
from aegaeon_sidecar.domain.errors import CacheFullError
from aegaeon_sidecar.weights.store import evict

IMAGE_SUFFIX = ".weights"
DRAFT_SUFFIX = ".partial"
KNOWN_SUFFIX = ".known"
PROOF_SUFFIX = ".proved"
LOCK_NAME = "weights.lock"
_KNOWN_MOST = 4096


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image or a draft. See store.Entry; it is its own lock."""

    path: Path

    @property
    def lock(self) -> Path:
        """See Entry."""
        return self.path

    @property
    def content(self) -> str:
        """The content hash of an image."""
        return self.path.name.removesuffix(IMAGE_SUFFIX)

    def rank(self) -> tuple[bool, int]:
        """See Entry."""
        return self.path.suffix == IMAGE_SUFFIX, self.path.stat().st_mtime_ns

    def claimed_bytes(self) -> int:
        """See Entry."""
        return self.path.stat().st_size

    def stored_bytes(self) -> int:
        """See Entry."""
        return self.claimed_bytes() - missing_bytes(self.path.stat())

    def remove(self) -> None:
        """See Entry. Its memory is free even where it is mapped."""
        with self.path.open("r+b") as file:
            self.path.unlink()
            file.truncate(0)


class ImageFolder:
    """All of them, with the limits that they are kept within (see store.Limits)."""

    def __init__(self, path: Path, budget_bytes: int) -> None:
        self.path = path
        self.budget_bytes = budget_bytes

    def locked(self) -> AbstractContextManager[None]:
        """The folder's lock."""
        return locked(self.path / LOCK_NAME)

    def image(self, content: str) -> Path:
        """The file for the image of a content."""
        return self.path / f"{content}{IMAGE_SUFFIX}"

    def draft(self, identity: str) -> Path:
        """The file that is filled first for an identity."""
        return self.path / f"{identity}{DRAFT_SUFFIX}"

    def images(self) -> list[ImageFile]:
        """Every image."""
        return [ImageFile(path) for path in self.path.glob(f"*{IMAGE_SUFFIX}")]

    def drafts(self) -> list[ImageFile]:
        """The drafts being filled; removes those of dead sidecars."""
        drafts = [ImageFile(path) for path in self.path.glob(f"*{DRAFT_SUFFIX}")]
        return [draft for draft in drafts if not evict(draft)]

    def is_being_filled(self, identity: str) -> bool:
        """True while a living sidecar fills the image; removes the draft of a dead one."""
        path = self.draft(identity)
        return path.exists() and not evict(ImageFile(path))

    def used_bytes(self) -> int:
        """Bytes that images and drafts of living sidecars claim."""
        return sum(file.claimed_bytes() for file in (*self.drafts(), *self.images()))

    def free_bytes(self) -> int:
        """See Limits."""
        system = os.statvfs(self.path)
        if not system.f_blocks:  # a tmpfs without a limit
            return sys.maxsize
        promised = sum(missing_bytes(draft.path.stat()) for draft in self.drafts())
        return system.f_bavail * system.f_frsize - promised

    def over_budget(self, nbytes: int, used_bytes: int) -> CacheFullError:
        """See Limits."""
        return CacheFullError(
            f"the weights need {nbytes} bytes; host_cache_bytes is {self.budget_bytes}, of which {used_bytes} are in "
            "use by other models; raise it or serve fewer models on this node"
        )

    def no_space(self, nbytes: int) -> CacheFullError:
        """See Limits."""
        system = os.statvfs(self.path)
        return CacheFullError(
            f"{self.path}: the weights need {nbytes} bytes, its file system has {self.free_bytes()} free of "
            f"{system.f_blocks * system.f_frsize}, though host_cache_bytes is {self.budget_bytes}; make the tmpfs "
            "larger (of a container: --shm-size, or an emptyDir of medium Memory) or host_cache_bytes smaller"
        )

    def known(self, identity: str) -> str | None:
        """The content of files that were read before."""
        try:
            return os.readlink(self._link(identity))
        except FileNotFoundError:
            return None

    def remember(self, identity: str, content: str) -> None:
        """Record that these files hold this content. The oldest records are removed when there are too many."""
        self.forget(identity)
        self._link(identity).symlink_to(content)
        self._keep_newest(KNOWN_SUFFIX)

    def forget(self, identity: str) -> None:
        """Forget the content of these files, so that the next load reads them again."""
        self._link(identity).unlink(missing_ok=True)

    def is_proved(self, key: str) -> bool:
        """True when the proof of this key has succeeded in this version of everything it depends on."""
        return (self.path / f"{key}{PROOF_SUFFIX}").exists()

    def remember_proof(self, key: str) -> None:
        """Record a successful proof. Only the newest are kept; older ones are made again."""
        (self.path / f"{key}{PROOF_SUFFIX}").touch()
        self._keep_newest(PROOF_SUFFIX)

    def _keep_newest(self, suffix: str) -> None:
        links = sorted(self.path.glob(f"*{suffix}"), key=lambda path: path.lstat().st_mtime_ns)
        for oldest in links[:-_KNOWN_MOST]:
            oldest.unlink()

    def _link(self, identity: str) -> Path:
        return self.path / f"{identity}{KNOWN_SUFFIX}"


def missing_bytes(stat: os.stat_result) -> int:
    """Bytes of the file without memory behind them."""
    return max(stat.st_size - stat.st_blocks * 512, 0)
