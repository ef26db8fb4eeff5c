"""Volumes with files of the nodes, and the rules for their folders."""

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
    """Return the API server's rule and the check for a mounted folder: it must not overlap with any of `taken`."""
    message = f"must have no `.`, `..` or `//` in it, and must not overlap with {', '.join(taken)}"

    def check(path: str) -> str:
        parts = PurePosixPath(path)
        overlaps = any(parts.is_relative_to(folder) or PurePosixPath(folder).is_relative_to(parts) for folder in taken)
        if overlaps or re.search(r"(^|/)[.][.]?(/|$)|//", path):
            raise ValueError(message)
        return path

    rule = (
        f"!self.matches('(^|/)[.][.]?(/|$)|//') && !{list(taken)}.exists(one, self == one || "
        "self.startsWith(one + '/') || one.startsWith(self.endsWith('/') ? self : self + '/'))"
    )
    return field_rules((rule, message)), check


# ModelPools name folders inside the path, which must not lead to these folders of the pods.
_MODELS_PATH, _free_for_models = apart(("/etc/aegaeon", "/var/cache/aegaeon", "/dev", "/proc", "/sys", "/tmp"))
# Engines write there, and on nodes its group is changed to theirs: it must be no folder of the system.
_DISK_PATH, _free_for_disk = apart(("/etc", "/usr", "/opt/aegaeon", "/var/cache/aegaeon", "/dev", "/proc", "/sys"))
DiskPath = Annotated[
    str,
    Field(min_length=1, max_length=4096, pattern=r"^/[^:\x00-\x1f\x7f]*$", json_schema_extra=_DISK_PATH),
    AfterValidator(_free_for_disk),
]


class ModelsVolume(Strict):
    """The folder of models that are already on the nodes."""

    path: Annotated[str, Field(min_length=2, max_length=1024, pattern=PATH), AfterValidator(_free_for_models)] = Field(
        json_schema_extra=_MODELS_PATH,
        description="Folder in the pods that contains the models' hostPath. Default: the node's folder.",
    )
    claim: DottedName | None = Field(
        default=None, description="PersistentVolumeClaim with the folder; default: the node's folder."
    )


class Volumes(Strict):
    """Volumes with files of the nodes."""

    models: ModelsVolume | None = Field(default=None, description="Models on the nodes; required for hostPath sources.")
    shared_claim: DottedName | None = Field(
        default=None,
        description="PersistentVolumeClaim on a tmpfs that all engines of a node share, for weights and swapped-out KV "
        "cache. Default: a folder below /dev/shm of the node, which needs a namespace that allows hostPath.",
    )
