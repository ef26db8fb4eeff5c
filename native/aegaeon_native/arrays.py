"""What bytes on any device look like to a tensor library; numpy's arrays are of this kind too."""

from __future__ import annotations

from typing import Any, Protocol


class DeviceBytes(Protocol):
    """uint8 [n] for torch.from_dlpack. What is not mapped may not be touched, as with every view of a range."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
