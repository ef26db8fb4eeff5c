"""`kubectl aegaeon` on real nodes: through kubelets and containerd, with the images.

In a file of its own, since test_kubectl_plugin.py has an operator of its own, and so runs before one is installed.
"""

from __future__ import annotations

import json

import pytest

from e2e.kubectl import kubectl_aegaeon
from e2e.pool import PodsOfPool

pytestmark = pytest.mark.cluster


def said(pool: PodsOfPool, *words: str) -> str:
    """What a command says that succeeds."""
    process = kubectl_aegaeon(pool.kubeconfig, *words, "-n", pool.namespace)
    found, complaint = process.communicate(timeout=120)
    assert process.returncode == 0, found + complaint
    return found


def test_models_are_on_engines_and_logs_name_them(pool: PodsOfPool) -> None:
    found = json.loads(said(pool, "ps", pool.name, "-o", "json"))
    assert {one["model"] for one in found} == {"llama", "qwen2", "mistral"}
    assert json.loads(said(pool, "top", pool.name, "--once", "-o", "json"))["instances"]
    assert said(pool, "logs", "llama")
    assert said(pool, "doctor")
