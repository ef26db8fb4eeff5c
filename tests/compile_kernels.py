"""Compile the GPU's kernels for machines that this one need not be, and hold what they take against committed limits.

`python compile_kernels.py 80 90`: of every kernel the registers of a thread, spilled bytes, shared memory and
occupancy: the share of a multiprocessor's warps that fit at once. A kernel that spills or starves a multiprocessor is
found here, and not by a figure on a GPU. Shapes are an 8B's: 32 heads, 8 key heads of 128, blocks of 16 tokens, bf16.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from aegaeon_sidecar.backends import fused_draws
from aegaeon_sidecar.backends.draws import COLUMNS, NO_TOKEN
from aegaeon_sidecar.backends.torch import paged

POINTERS = {
    "keys": "*bf16", "values": "*bf16", "cache": "i64", "queries": "*bf16", "out": "*bf16", "partial": "*fp32",
    "lse": "*fp32", "tables": "*i32", "lengths": "*i32", "logits": "*fp32", "rules": "*fp64", "tokens": "*i64",
}  # fmt: skip
CONSTANTS = {
    "layers": 32, "slots": 16, "kv_heads": 8, "group": 4, "rows": 16, "dim": 128, "lanes": 128, "heads": 32,
    "width": 1024, "wide": 1024, "least": paged.SPLIT_TOKENS, "most": paged.MOST_SPLITS,
}  # fmt: skip
# Integers that Triton finds to be multiples of 16 wherever a kernel is launched, and compiles it for.
MULTIPLES = {"cache"}
OF_DRAWS = {"columns": COLUMNS, "no_token": NO_TOKEN, "last": fused_draws._LAST, "tile": fused_draws.TILE}
OF_PAGED = {**CONSTANTS, "tile": paged.TILE_TOKENS}
# Each kernel of Triton's, its constants and its warps.
KERNELS: list[tuple[Any, dict[str, int], int]] = [
    (paged._write, OF_PAGED, 4),
    (paged._attend_split, OF_PAGED, 4),
    (paged._join, OF_PAGED, 4),
    (fused_draws._draw, OF_DRAWS, fused_draws.WARPS),
]
# What a thread may take at most, and how much of a multiprocessor is to be busy at least. Spills are refused anywhere.
REGISTERS = {"_write": 32, "_attend_split": 128, "_join": 40, "_draw": 128}
OCCUPANCY = {"_write": 0.75, "_attend_split": 0.25, "_join": 0.75, "_draw": 0.25}


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """CUDA programming guide, technical specifications per compute capability: shared memory in bytes, 1 KiB of it
    reserved for each block; 64 Ki registers, given to a warp in units of 256."""

    shared: int
    warps: int = 64
    blocks: int = 32
    registers: int = 65536


MULTIPROCESSORS = {80: Multiprocessor(164 << 10), 90: Multiprocessor(228 << 10)}


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a compiled kernel. `spilled`: bytes of a thread's stack and local memory."""

    kernel: str
    capability: int
    registers: int
    spilled: int
    shared: int
    warps: int

    @property
    def occupancy(self) -> float:
        one = MULTIPROCESSORS[self.capability]
        of_warp = -(-self.registers * 32 // 256) * 256
        blocks = min(
            one.blocks,
            one.warps // self.warps,
            one.registers // (of_warp * self.warps),
            one.shared // (self.shared + 1024),
        )
        return blocks * self.warps / one.warps

    def faults(self) -> list[str]:
        """What exceeds its limit."""
        found = []
        if self.registers > REGISTERS[self.kernel]:
            found.append(f"{self.registers} registers, {REGISTERS[self.kernel]} are allowed")
        if self.spilled:
            found.append(f"{self.spilled} bytes are spilled")
        if self.occupancy < OCCUPANCY[self.kernel]:
            found.append(f"occupancy {self.occupancy:.2f}, {OCCUPANCY[self.kernel]:.2f} is needed")
        return [f"{self.kernel}, sm_{self.capability}: {fault}" for fault in found]


def resources(binary: bytes) -> dict[str, int]:
    """What cuobjdump says of a compiled kernel: REG, STACK, LOCAL and more."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        tool = triton.knobs.nvidia.cuobjdump.path
        said = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    line = next(line for line in said.splitlines() if "REG:" in line)
    return {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)}


def usage_of(kernel: Any, constants: dict[str, int], warps: int, capability: int) -> Usage:
    kinds = {name: kind_of(name, constants) for name in kernel.arg_names}
    fixed = {(kernel.arg_names.index(name),): constants[name] for name in kinds if name in constants}
    aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned_arguments(kinds)}
    source = ASTSource(kernel, kinds, fixed, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    of = resources(compiled.asm["cubin"])
    return Usage(kernel.__name__, capability, of["REG"], of["STACK"] + of["LOCAL"], compiled.metadata.shared, warps)


def aligned_arguments(names: Iterable[str]) -> set[str]:
    """Pointers, and MULTIPLES."""
    return {name for name in names if POINTERS.get(name, "").startswith("*") or name in MULTIPLES}


def kind_of(name: str, constants: dict[str, int]) -> str:
    if name in constants:
        return "constexpr"
    return POINTERS.get(name, "fp32" if name == "scale" else "i32")


def main() -> int:
    capabilities = [int(each) for each in sys.argv[1:]]
    usages = [
        usage_of(kernel, constants, warps, capability)
        for kernel, constants, warps in KERNELS
        for capability in capabilities
    ]
    lines = [f"{'kernel':<22} {'':<6} {'registers':>9} {'spilled':>8} {'shared':>8} {'warps':>6} {'occupancy':>10}"]
    lines += [
        f"{one.kernel:<22} sm_{one.capability:<3} {one.registers:>9} {one.spilled:>8} {one.shared:>8} "
        f"{one.warps:>6} {one.occupancy:>10.2f}"
        for one in usages
    ]
    faults = [fault for one in usages for fault in one.faults()]
    lines += faults or ["all within their limits"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
