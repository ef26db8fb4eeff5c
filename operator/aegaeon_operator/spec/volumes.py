"""Files of the nodes that a pool's pods use, and which folders they may be."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic.config import JsonDict

from aegaeon_operator.spec.base import PATH, DottedName, Strict
from aegaeon_operator.spec.cel import field_rules


def apart(taken: tuple[str, ...]) -> tuple[JsonDict, Callable[[str], str]]:
    """For a folder that is mounted into pods: the API server's rule and ours, that it meets none of `taken`."""
    said = f"must have no `.`, `..` or `//` in it, and be neither inside nor around {', '.join(taken)}"

    def check(path: str) -> str:
        parts = PurePosixPath(path)
        meets = any(parts.is_relative_to(one) or PurePosixPath(one).is_relative_to(parts) for one in taken)
        if meets or re.search(r"(^|/)[.][.]?(/|$)|//", path):
            raise ValueError(said)
        return path

    rule = (
        f"!self.matches('(^|/)[.][.]?(/|$)|//') && !{list(taken)}.exists(one, self == one || "
        "self.startsWith(one + '/') || one.startsWith(self.endsWith('/') ? self : self + '/'))"
    )
    return field_rules((rule, said)), check


# Folders of pods that are not models': ModelPools name folders inside the path, and must not reach these by it.
_MODELS_PATH, _free_for_models = apart(("/etc/aegaeon", "/var/cache/aegaeon", "/dev", "/proc", "/sys", "/tmp"))
# Engines write there, and on nodes it is handed to their group: it must be no folder that others need.
_DISK_PATH, _free_for_disk = apart(("/etc", "/usr", "/opt/aegaeon", "/var/cache/aegaeon", "/dev", "/proc", "/sys"))
DiskPath = Annotated[
    str,
    Field(min_length=1, max_length=4096, pattern=r"^/[^:\x00-\x1f\x7f]*$", json_schema_extra=_DISK_PATH),
    AfterValidator(_free_for_disk),
]


class ModelsVolume(Strict):
    """Where models that are there already lie."""

    path: Annotated[str, Field(min_length=2, max_length=1024, pattern=PATH), AfterValidator(_free_for_models)] = Field(
        json_schema_extra=_MODELS_PATH,
        description="Folder in the pods; models' hostPath is inside it. Without a claim it is the node's own folder.",
    )
    claim: DottedName | None = Field(
        default=None, description="PersistentVolumeClaim that holds it; left out: the same path of the node."
    )


class Volumes(Strict):
    """Files of the nodes that pods use."""

    models: ModelsVolume | None = Field(default=None, description="Models on the nodes; needed for hostPath sources.")
    shared_claim: DottedName | None = Field(
        default=None,
        description="PersistentVolumeClaim on a tmpfs that all engines of a node share, for weights and swapped-out KV "
        "cache; left out: a folder below /dev/shm of the node, which needs a namespace that allows hostPath.",
    )
