"""Examples of other projects' kinds, as they stand in examples/, against the definitions of those projects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cluster import definitions
from e2e.cluster.errors import ClusterError
from e2e.kubectl import REPOSITORY, define, filenames, kubectl

pytestmark = pytest.mark.cluster
EXAMPLES = REPOSITORY / "examples"
# The kinds of an example, and the namespace that it expects.
CASES = {
    "autoscaling/keda.yaml": ((definitions.KEDA,), "default"),
    "gitops/flux.yaml": ((definitions.FLUX_SOURCES, definitions.FLUX_KUSTOMIZATIONS), "flux-system"),
}


@contextmanager
def defined(kubeconfig: Path, kinds: tuple[tuple[str, str, str], ...], namespace: str) -> Iterator[None]:
    """With the definitions, and the namespace, for the time of a `with`."""
    files = [file for kind in kinds for file in definitions.files(kind)]
    define(kubeconfig, files)
    own = namespace != "default"
    try:
        kubectl(kubeconfig, "wait", "--for=condition=Established", "--timeout=240s", *filenames(files))
        if own:
            kubectl(kubeconfig, "create", "namespace", namespace)
        yield
    finally:
        # Nothing that follows uses these, and a busy API server takes minutes to finalize a definition.
        if own:
            kubectl(kubeconfig, "delete", "namespace", namespace, "--ignore-not-found", "--wait=false")
        kubectl(kubeconfig, "delete", *filenames(files), "--ignore-not-found", "--wait=false")


@pytest.mark.parametrize("example", CASES)
def test_an_example_is_accepted_as_it_stands_and_a_misspelt_field_is_not(
    kubeconfig: Path, tmp_path: Path, example: str
) -> None:
    kinds, namespace = CASES[example]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((EXAMPLES / example).read_text("utf-8").replace("spec:\n", "spec:\n  misspelt: 1\n"), "utf-8")
    strictly = ("apply", "--server-side", "--validate=strict", "--dry-run=server")
    with defined(kubeconfig, kinds, namespace):
        said = kubectl(kubeconfig, *strictly, f"--filename={EXAMPLES / example}")
        with pytest.raises(ClusterError, match="misspelt"):
            kubectl(kubeconfig, *strictly, f"--filename={wrong}")
    assert "serverside-applied" in said.replace(" (server dry run)", "")
