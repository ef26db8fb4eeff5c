"""Model execution with PyTorch: one decoder for four architectures, parameters and KV cache as views of our memory."""

from aegaeon_sidecar.backends.torch.backend import TorchBackend, configure_threads

__all__ = ["TorchBackend", "configure_threads"]
