"""Compile the attention kernels for GPUs that this machine need not have: `python compile_paged.py 80 90`."""

from __future__ import annotations

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from aegaeon_sidecar.backends.torch import paged

POINTERS = {"keys", "values", "cache", "queries", "out"}
FLOATS = {"partial", "lse"}
CONSTANTS = {
    "layers": 32, "slots": 16, "kv_heads": 8, "group": 4, "rows": 16, "dim": 128, "lanes": 128, "heads": 32,
    "width": 1024, "wide": 1024, "least": paged.SPLIT_TOKENS, "most": paged.MOST_SPLITS, "tile": paged.TILE_TOKENS,
}  # fmt: skip


def signature(name: str) -> str:
    if name in CONSTANTS:
        return "constexpr"
    if name in POINTERS:
        return "*bf16"
    if name in FLOATS:
        return "*fp32"
    if name == "scale":
        return "fp32"
    return "*i32" if name in {"tables", "lengths"} else "i32"


def main() -> None:
    for capability in map(int, sys.argv[1:]):
        for kernel in (paged._write, paged._attend_split, paged._join):
            kinds = {name: signature(name) for name in kernel.arg_names}
            constants = {(kernel.arg_names.index(name),): CONSTANTS[name] for name in kinds if name in CONSTANTS}
            source = ASTSource(kernel, kinds, constants)
            compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
            assert compiled.asm["cubin"], kernel.__name__


if __name__ == "__main__":
    main()
