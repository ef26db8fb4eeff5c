"""Model execution with PyTorch: one decoder for four architectures, parameters and KV cache as views of our memory."""

from __future__ import annotations

from aegaeon_sidecar.backends import AdapterLimits, Backend
from aegaeon_sidecar.backends.torch.backend import TorchBackend, configure_threads

__all__ = ["TorchBackend", "configure_threads", "open_backend"]


def open_backend(
    *, device: str, ranks: int, dtype: str, adapters: AdapterLimits | None = None, max_graphs: int
) -> Backend:
    """The backend. Raises BackendError where it cannot compute; adapters are refused with each that is described."""
    return TorchBackend(device=device, ranks=ranks, dtype=dtype, max_graphs=max_graphs)
