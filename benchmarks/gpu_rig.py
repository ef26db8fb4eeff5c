"""What the GPU benchmarks share: where they run, random models whose weights are made where they lie, and clocks.

`--device cpu --small` runs them where there is no GPU, to show that they run: slabs are then host memory, and no bar is
held.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from benchmarks.report import BARS_MISSED, Figures
from torch.utils.dlpack import from_dlpack

from aegaeon_native import BlockPool, CudaDevice, Range, SlabPool
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.memory.gpu import open_gpu
from aegaeon_sidecar.models.config import read_spec
from aegaeon_sidecar.models.layout import ALIGNMENT, kv_shape, place_tensors
from aegaeon_sidecar.models.placement import Layout

Size = TypeVar("Size")
SLAB_BYTES = 32 << 20
GB = 1e9
_CYCLES_PER_MS = 1.7e6  # of a multiprocessor's clock
MODEL = "model"
"""the name under which `placed` registers one"""
# Llama-2-7B's config.json, with the context cut to what the benchmarks use.
SEVEN_B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
# Llama-3-8B's, with its long context.
EIGHT_B = SEVEN_B | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072 + 64,
    "rope_theta": 500000.0,
}
_SMALL = {
    "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "vocab_size": 512,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a benchmark runs, and its figures. `gpu`: None on a CPU."""

    device: str
    gpu: CudaDevice | None
    small: bool
    figures: Figures

    def sized(self, full: Size, small: Size) -> Size:
        """What this run is to use."""
        return small if self.small else full

    def shape(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config.json, or one of the same kind in small."""
        return {**config, **(_SMALL if self.small else {})}

    def pool(self, slabs: int, slab_bytes: int = SLAB_BYTES) -> SlabPool:
        """Memory of the device."""
        if self.gpu is None:
            return SlabPool.private("bench", slab_bytes, slabs)
        return SlabPool.cuda(self.gpu, slab_bytes, slabs)

    @property
    def status(self) -> int:
        """Of the process."""
        return 0 if self.small or self.figures.hold else BARS_MISSED


def begin(name: str, about: str | None, sweep: bool = False) -> tuple[Bench, argparse.Namespace]:
    """Read the command line, open the device. Raises NativeError where it is not there. `sweep`: it has one."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cpu, or cuda:N")
    parser.add_argument("--small", action="store_true", help="small sizes that show that it runs; no bar is held")
    parser.add_argument("--figures", type=Path, help="append JSON lines there, instead of writing benchmarks/results")
    if sweep:
        parser.add_argument("--sweep", action="store_true", help="every size, instead of those with a bar")
    given = parser.parse_args()
    stage = f"{name}_sweep" if sweep and given.sweep else name
    return Bench(given.device, gpu(given.device), given.small, Figures(stage, given.figures, short=given.small)), given


def gpu(device: str = "cuda:0") -> CudaDevice | None:
    """That GPU, its context shared with torch; None for "cpu". Raises NativeError where it is not there."""
    found = open_gpu(device)
    if found is not None:
        torch.zeros(1, device=device)
        print(f"{found.name}, {found.total_bytes / GB:.0f} GB, sm_{found.capability}", flush=True)
    return found


def layout_of(folder: Path, config: Mapping[str, Any]) -> Layout:
    """`folder` gets the shape's config.json alone; the layout of its weights in bfloat16."""
    (folder / "config.json").write_text(json.dumps(config))
    spec = read_spec(folder)
    places, shape = place_tensors(spec, "bfloat16"), kv_shape(spec, "bfloat16", 16)
    last = places[-1]
    nbytes = -(-(last.offset + last.nbytes) // ALIGNMENT) * ALIGNMENT
    return Layout(nbytes, places, shape.key, shape.block_bytes, 16, spec.max_positions, (), dtype="bfloat16")


@dataclass(frozen=True, slots=True)
class Placed:
    """A random model in slabs of the device, registered as MODEL, and blocks for its KV."""

    backend: TorchBackend
    layout: Layout
    blocks: BlockPool


@contextmanager
def placed(bench: Bench, folder: Path, config: Mapping[str, Any], kv_tokens: int) -> Iterator[Placed]:
    """It for the length of a `with`, with blocks for so many tokens; then its memory is free again."""
    torch.cuda.empty_cache()  # what torch keeps of earlier measurements; nothing where there is no GPU
    layout = layout_of(folder, config)
    slab_bytes = bench.sized(SLAB_BYTES, 1 << 20)
    each = slab_bytes // layout.kv_block_bytes
    slabs, more = -(-layout.weight_bytes // slab_bytes), -(-(kv_tokens // 16 + 1) // each) + 1
    pool = bench.pool(slabs + more, slab_bytes)
    weights, blocks = Range(pool, slabs), BlockPool(pool, layout.kv_block_bytes, more)
    weights.map(0, pool.take(slabs))
    from_dlpack(weights.dlpack(0, layout.weight_bytes)).view(torch.bfloat16).normal_(std=0.02)
    backend = TorchBackend(device=bench.device, dtype="bfloat16")
    backend.register(MODEL, folder, layout, weights.dlpack(0, layout.weight_bytes))
    backend.bind_kv(layout.kv_shape, blocks.dlpack())
    try:
        yield Placed(backend, layout, blocks)
    finally:
        backend.forget(MODEL)
        if bench.gpu is not None:
            torch.cuda.synchronize(bench.device)
        for used in (blocks, weights, pool):
            used.close()


def busy(device: str, milliseconds: float) -> Callable[[], None]:
    """A kernel of about so long begins to run; what waits for it. On a CPU there is none."""
    if device == "cpu" or not milliseconds:
        return lambda: None
    torch.cuda.synchronize(device)
    torch.cuda._sleep(int(milliseconds * _CYCLES_PER_MS))
    return partial(torch.cuda.synchronize, device)


def median_s(action: Callable[[], object], rounds: int = 7, *, waits: bool = True) -> float:
    """Seconds on the host clock. `waits`: for an idle device, before and after."""
    times = []
    idle = torch.cuda.synchronize if waits and torch.cuda.is_available() else lambda: None
    for _ in range(rounds):
        idle()
        begin = time.perf_counter()
        action()
        idle()
        times.append(time.perf_counter() - begin)
    return sorted(times)[rounds // 2]


def link_rates(device: str = "cuda:0", nbytes: int = 1 << 30) -> tuple[float, float]:
    """Bytes a second of one large copy between page-locked memory and the GPU: in, out. By torch, as the limit."""
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device != "cpu")
    there = torch.empty(nbytes, dtype=torch.uint8, device=device)
    into = median_s(lambda: there.copy_(host, non_blocking=True))
    out = median_s(lambda: host.copy_(there, non_blocking=True))
    return nbytes / into, nbytes / out


def memory_rate(device: str = "cuda:0", nbytes: int = 4 << 30) -> float:
    """Bytes a second that a kernel reads: a reduction over memory much larger than the caches."""
    data = torch.zeros(nbytes // 4, dtype=torch.int32, device=device)
    data.max()
    return nbytes / median_s(data.max)


def matmul_rate(device: str = "cuda:0", size: int = 8192) -> float:
    """Operations a second of a square bfloat16 product of random numbers: the dense peak that is reached."""
    one, other = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    torch.mm(one, other)
    return 2 * size**3 / median_s(lambda: torch.mm(one, other))
