"""A baked image belongs to the vLLM that baked it: another version finds nothing of it in the host cache, and a later
engine of the same version all of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.weights.cache import HostCache
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
        theirs = names(directory, replace(layout, made_by="vllm 0.31.0 cpu AVX2"))
        assert [one == other for one, other in zip(ours, theirs, strict=True)] == [not baked] * 2


@pytest.mark.parametrize("name", ["gptq", "mixtral"])
def test_an_engine_that_starts_later_serves_the_image_that_another_one_baked(
    name: str, family: Any, vllm_backend: Any, rig: Any, tmp_path: Path
) -> None:
    directory, baked = family(name, "bfloat16"), []

    def obtain(layout: Layout) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """As a sidecar does at its start."""
        files = look(directory, layout)

        def bring(file: int) -> str:
            baked.append(file)
            return fill(files, [], StageRing(), into_file=file)

        image = HostCache(tmp_path / "node", 64 << 20).obtain(files.identity, layout.image_bytes, bring)
        try:
            return image.bytes.copy()
        finally:
            image.close()

    first, second = (rig(vllm_backend("bfloat16"), directory) for _ in range(2))
    first.weights[:], second.weights[:] = obtain(first.layout), obtain(second.layout)
    assert len(baked) == 1
    one, other = (engine.logits([5, 6, 7], 0, [1]) for engine in (first, second))
    assert one.isfinite().all()
    assert (one == other).all()
