"""The library of vLLM's kernels for this processor, and why it is not loaded where it is not."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import torch
import vllm._custom_ops as custom_ops

PROCESSOR = torch.backends.cpu.get_cpu_capability() + " AMX" * torch.cpu._is_amx_tile_supported()
"""what vLLM chooses kernels for CPUs by, and so the format of what they pack"""
OPERATOR = "get_scheduler_metadata"
"""of every step"""


def _library() -> Path:
    """The library that vLLM loads on this processor. A second one beside it would register the same kernels again,
    which ends the process."""
    name = "_C"
    if platform.machine() == "x86_64" and not torch.cpu._is_avx512_supported():
        name = "_C_AVX2"
    elif platform.machine() == "x86_64" and not torch.cpu._is_avx512_bf16_supported():
        name = "_C_AVX512"
    return Path(custom_ops.__file__).with_name(f"{name}.abi3.so")


LIBRARY = _library()


def missing() -> str:
    """The reason why vLLM's kernels are not loaded, which vLLM only logs; empty: they are."""
    if hasattr(torch.ops._C, OPERATOR):
        return ""
    load = "import ctypes, sys, torch\ntry: ctypes.CDLL(sys.argv[1])\nexcept OSError as error: sys.exit(str(error))"
    tried = subprocess.run([sys.executable, "-c", load, str(LIBRARY)], capture_output=True, text=True, check=False)
    if tried.returncode:  # the process may be ended by an instruction that this CPU lacks, and so is a child
        return tried.stderr.strip() or f"{LIBRARY.name} ends the process that loads it, by signal {-tried.returncode}"
    return f"{LIBRARY.name} has no {OPERATOR}"
