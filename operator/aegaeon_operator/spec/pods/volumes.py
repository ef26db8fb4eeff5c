"""Volumes of a pod template."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aegaeon_operator.spec.base import PATH, SECRET_KEY, DottedName, ObjectName, Strict
from aegaeon_operator.spec.cel import rules
from aegaeon_operator.spec.exclusive_fields import ExclusiveFields
from aegaeon_operator.spec.kubernetes import Amount, Annotations

_KINDS = ExclusiveFields("empty_dir", "config_map", "secret", "persistent_volume_claim", "host_path", "csi")
_Mode = Annotated[int, Field(ge=0, le=0o777)]


class EmptyDir(Strict):
    """An empty folder with the lifetime of the pod."""

    medium: Literal["", "Memory"] = Field(default="", description="Memory: a tmpfs, which counts as memory of the pod.")
    size_limit: Amount | None = Field(default=None, description="Maximum size.")


class KeyPath(Strict):
    """A mapping of an entry to a file."""

    key: Annotated[str, Field(min_length=1, max_length=253, pattern=SECRET_KEY)] = Field(
        description="Key of the entry."
    )
    path: Annotated[str, Field(min_length=1, max_length=512)] = Field(description="Path of the file in the volume.")
    mode: _Mode | None = Field(default=None, description="Permissions of the file.")


_Items = Annotated[tuple[KeyPath, ...], Field(max_length=64)]


class ConfigMapVolume(Strict):
    """A volume with the entries of a ConfigMap as files."""

    name: DottedName = Field(description="Name of the ConfigMap, in the GpuPool's namespace.")
    items: _Items = Field(default=(), description="Entries to mount; default: all.")
    default_mode: _Mode = Field(default=0o644, description="Permissions of the files.")
    optional: bool = Field(default=False, description="If true, the pod starts without it.")


class SecretVolume(Strict):
    """A volume with the entries of a Secret as files."""

    secret_name: DottedName = Field(description="Name of the Secret, in the GpuPool's namespace.")
    items: _Items = Field(default=(), description="Entries to mount; default: all.")
    default_mode: _Mode = Field(default=0o440, description="Permissions of the files, which belong to the pod's group.")
    optional: bool = Field(default=False, description="If true, the pod starts without it.")


class ClaimVolume(Strict):
    """A volume of a PersistentVolumeClaim."""

    claim_name: DottedName = Field(description="Name of the claim, in the GpuPool's namespace.")
    read_only: bool = Field(default=False, description="If true, mount it read-only.")


class HostPathVolume(Strict):
    """A folder or file of the node."""

    path: Annotated[str, Field(min_length=2, max_length=512, pattern=PATH)] = Field(description="Path on the node.")
    type: Literal["", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice"] = Field(
        default="", description="Check of the path before it is mounted; default: none."
    )


class CsiVolume(Strict):
    """An ephemeral volume of a CSI driver."""

    driver: DottedName = Field(description="Name of the driver.")
    read_only: bool = Field(default=False, description="If true, mount it read-only.")
    fs_type: Annotated[str, Field(max_length=63)] = Field(default="", description="File system type.")
    volume_attributes: Annotations = Field(default={}, description="Attributes for the driver.")


class PodVolume(Strict):
    """A volume of the pods. Set exactly one of the fields beside its name."""

    model_config = rules(_KINDS.rule)

    name: ObjectName = Field(description="Name that mounts refer to.")
    empty_dir: EmptyDir | None = Field(default=None, description="An empty folder with the lifetime of the pod.")
    config_map: ConfigMapVolume | None = Field(default=None, description="The entries of a ConfigMap as files.")
    secret: SecretVolume | None = Field(default=None, description="The entries of a Secret as files.")
    persistent_volume_claim: ClaimVolume | None = Field(default=None, description="A PersistentVolumeClaim.")
    host_path: HostPathVolume | None = Field(
        default=None, description="A folder or file of the node, if the namespace's Pod Security level allows it."
    )
    csi: CsiVolume | None = Field(default=None, description="A volume of a CSI driver.")

    _exactly_one = _KINDS.validator
