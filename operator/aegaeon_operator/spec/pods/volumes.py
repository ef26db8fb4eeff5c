"""Volumes that a template brings for its containers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aegaeon_operator.spec.base import PATH, SECRET_KEY, DottedName, ObjectName, Strict
from aegaeon_operator.spec.cel import rules
from aegaeon_operator.spec.kubernetes import Amount, Annotations
from aegaeon_operator.spec.one_of import OneOf

_KINDS = OneOf("empty_dir", "config_map", "secret", "persistent_volume_claim", "host_path", "csi")
_Mode = Annotated[int, Field(ge=0, le=0o777)]


class EmptyDir(Strict):
    """A folder that goes with the pod."""

    medium: Literal["", "Memory"] = Field(default="", description="Memory: a tmpfs, counted as the pod's memory.")
    size_limit: Amount | None = Field(default=None, description="Most that it may take.")


class KeyPath(Strict):
    """An entry as a file."""

    key: Annotated[str, Field(min_length=1, max_length=253, pattern=SECRET_KEY)] = Field(description="The entry.")
    path: Annotated[str, Field(min_length=1, max_length=512)] = Field(description="Its file in the volume.")
    mode: _Mode | None = Field(default=None, description="Permissions of the file.")


_Items = Annotated[tuple[KeyPath, ...], Field(max_length=64)]


class ConfigMapVolume(Strict):
    """Files of a ConfigMap."""

    name: DottedName = Field(description="Name of the ConfigMap, in the GpuPool's namespace.")
    items: _Items = Field(default=(), description="Entries that are files; left out: all.")
    default_mode: _Mode = Field(default=0o644, description="Permissions of the files.")
    optional: bool = Field(default=False, description="Whether the pod starts without it.")


class SecretVolume(Strict):
    """Files of a Secret."""

    secret_name: DottedName = Field(description="Name of the Secret, in the GpuPool's namespace.")
    items: _Items = Field(default=(), description="Entries that are files; left out: all.")
    default_mode: _Mode = Field(default=0o440, description="Permissions of the files, whose group is the pod's.")
    optional: bool = Field(default=False, description="Whether the pod starts without it.")


class ClaimVolume(Strict):
    """A PersistentVolumeClaim."""

    claim_name: DottedName = Field(description="Its name, in the GpuPool's namespace.")
    read_only: bool = Field(default=False, description="Whether it can only be read.")


class HostPathVolume(Strict):
    """A folder or a file of the node."""

    path: Annotated[str, Field(min_length=2, max_length=512, pattern=PATH)] = Field(description="Path on the node.")
    type: Literal["", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice"] = Field(
        default="", description="What must be there."
    )


class CsiVolume(Strict):
    """A volume that a CSI driver makes for the pod."""

    driver: DottedName = Field(description="Name of the driver.")
    read_only: bool = Field(default=False, description="Whether it can only be read.")
    fs_type: Annotated[str, Field(max_length=63)] = Field(default="", description="File system.")
    volume_attributes: Annotations = Field(default={}, description="What the driver wants to know.")


class PodVolume(Strict):
    """A volume of the pods. Exactly one of the fields beside its name."""

    model_config = rules(_KINDS.rule)

    name: ObjectName = Field(description="Name that mounts have.")
    empty_dir: EmptyDir | None = Field(default=None, description="A folder that goes with the pod.")
    config_map: ConfigMapVolume | None = Field(default=None, description="Files of a ConfigMap.")
    secret: SecretVolume | None = Field(default=None, description="Files of a Secret.")
    persistent_volume_claim: ClaimVolume | None = Field(default=None, description="A PersistentVolumeClaim.")
    host_path: HostPathVolume | None = Field(
        default=None, description="A folder or a file of the node, where the namespace allows it."
    )
    csi: CsiVolume | None = Field(default=None, description="A volume of a CSI driver.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        return _KINDS.check(self)
