"""Bytes on any device as a tensor library sees them; numpy's arrays are of this kind too."""

from __future__ import annotations

from typing import Any, Protocol


class DeviceBytes(Protocol):
    """uint8 [n] for torch.from_dlpack. Unmapped parts must not be accessed, as with every view of a range."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
