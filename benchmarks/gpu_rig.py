"""What the GPU benchmarks share: a random model of a 7B's shape whose weights are made on the host, never on a disk."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from aegaeon_native import CudaDevice
from aegaeon_sidecar.memory.gpu import open_gpu
from aegaeon_sidecar.models.config import read_spec
from aegaeon_sidecar.models.layout import ALIGNMENT, kv_shape, place_tensors
from aegaeon_sidecar.models.placement import Layout

SLAB_BYTES = 32 << 20
GB = 1e9
# Llama-2-7B's config.json, with the context of models of today: what a step costs for the longest that a model allows,
# and not for the contexts that it has, is to show.
SEVEN_B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}


def gpu() -> CudaDevice:
    """GPU 0, its context shared with torch. Raises NativeError where there is none."""
    found = open_gpu("cuda:0")
    assert found is not None
    torch.zeros(1, device="cuda:0")
    print(f"{found.name}, {found.total_bytes / GB:.0f} GB, sm_{found.capability}", flush=True)
    return found


def seven_b(folder: Path) -> tuple[Path, Layout]:
    """A directory with the shape's config.json alone, and the layout of its weights in bfloat16."""
    (folder / "config.json").write_text(json.dumps(SEVEN_B))
    spec = read_spec(folder)
    places, shape = place_tensors(spec, "bfloat16"), kv_shape(spec, "bfloat16", 16)
    last = places[-1]
    nbytes = -(-(last.offset + last.nbytes) // ALIGNMENT) * ALIGNMENT
    return folder, Layout(nbytes, places, shape.key, shape.block_bytes, 16, spec.max_positions, (), dtype="bfloat16")


def median_s(action: Callable[[], object], rounds: int = 7) -> float:
    """Seconds on the host clock, the device idle before and after."""
    times = []
    idle = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for _ in range(rounds):
        idle()
        begin = time.perf_counter()
        action()
        idle()
        times.append(time.perf_counter() - begin)
    return sorted(times)[rounds // 2]


def link_rates(nbytes: int = 1 << 30) -> tuple[float, float]:
    """Bytes a second of one large copy between page-locked memory and the GPU: in, out. By torch, as the limit."""
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(nbytes, dtype=torch.uint8, device="cuda:0")
    into = median_s(lambda: device.copy_(host, non_blocking=True))
    out = median_s(lambda: host.copy_(device, non_blocking=True))
    return nbytes / into, nbytes / out


def memory_rate(nbytes: int = 4 << 30) -> float:
    """Bytes a second that a kernel reads: a reduction over memory much larger than the caches."""
    data = torch.zeros(nbytes // 4, dtype=torch.int32, device="cuda:0")
    data.max()
    return nbytes / median_s(data.max)
