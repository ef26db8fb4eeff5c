"""A baked image belongs to the vLLM that baked it: another version finds nothing of it in the host cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.ring import StageRing


def names(directory: Path, layout: Layout) -> tuple[str, str]:
    """By which the host cache finds an image before its files are read, and keeps it afterwards."""
    files = look(directory, layout)
    return files.identity, fill(files, [], StageRing())


def test_two_versions_of_vllm_bake_images_of_their_own_and_share_those_by_plan(family: Any, vllm_backend: Any) -> None:
    backend = vllm_backend("bfloat16")
    for name, baked in (("gptq", True), ("llama", False)):
        directory = family(name, "bfloat16")
        layout = backend.describe(directory, 0)
        assert (layout.bake is not None) is baked
        assert layout.made_by.startswith("vllm ") is baked
        ours = names(directory, layout)
        again = names(directory, backend.describe(directory, 0))
        assert ours == again
        theirs = names(directory, replace(layout, made_by="vllm 0.31.0 cpu"))
        assert [one == other for one, other in zip(ours, theirs, strict=True)] == [not baked] * 2
