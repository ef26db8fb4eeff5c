"""`make images` as it stands: two builds have one digest, labels say what it is, the SBOM lists what is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.images import BASE, BUILD, VERSION, builder, ensure_base
from e2e.cluster.layout import default_layout
from e2e.cluster.processes import run
from e2e.kubectl import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]
NAME = f"localhost/aegaeon-control:{VERSION}"
INSTALLED = """
import json, re
from importlib.metadata import distributions
import aegaeon_scheduler  # which AEGAEON_CORE lets fail without a compiled core
print(json.dumps({re.sub("[-_.]+", "-", one.metadata["Name"]).lower(): one.version for one in distributions()}))
"""


@dataclass(frozen=True, slots=True)
class Built:
    """What an image is known by, its labels, and the packages that its Python finds."""

    digest: str
    labels: dict[str, str]
    packages: dict[str, str]


@pytest.fixture(scope="module")
def twice() -> list[Built]:
    """Without a cache, on the small base of the cluster's images: registries' bases are not reached from everywhere."""
    if os.geteuid() != 0 or shutil.which("buildah") is None or shutil.which("debootstrap") is None:
        pytest.skip("needs root, to build an image without a daemon, and what `make cluster-packages` installs for it")
    for base in (BASE, BUILD):
        ensure_base(default_layout(), base)
    return [build(), build()]


def build() -> Built:
    """By the Makefile's target."""
    buildah = builder(default_layout())
    flags = f"--no-cache --build-arg BASE_IMAGE={BASE} --build-arg BUILD_IMAGE={BUILD}"
    flags += " --volume=/etc/ssl/certs:/etc/ssl/certs:ro"
    words = ["IMAGES_OF=control", f"BUILDER={' '.join(buildah)} bud -q", f"IMAGE_FLAGS={flags}"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    subprocess.run(["make", "-s", "images", *words], cwd=REPOSITORY, check=True, env=plain)
    seen = json.loads(run(*buildah, "inspect", "--type", "image", NAME))
    container = run(*buildah, "from", NAME).strip()
    try:
        packages = json.loads(
            run(*buildah, "run", container, "--", "env", "AEGAEON_CORE=compiled", "python3", "-c", INSTALLED)
        )
    finally:
        run(*buildah, "rm", container)
    return Built(seen["FromImageDigest"], seen["OCIv1"]["config"]["Labels"], packages)


def test_two_builds_of_one_commit_have_one_digest(twice: list[Built]) -> None:
    first, second = twice
    assert first.digest.startswith("sha256:")
    assert first.digest == second.digest


def test_labels_say_what_it_is_and_of_which_commit(twice: list[Built]) -> None:
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in twice[0].labels.items()}
    commit = run("git", "-C", str(REPOSITORY), "rev-parse", "HEAD").strip()
    assert (labels["title"], labels["version"], labels["revision"]) == ("aegaeon-control", VERSION, commit)
    assert labels["licenses"] == "Apache-2.0"
    assert labels["created"].endswith("Z")


def test_the_sbom_lists_what_is_installed_with_versions_and_hashes(twice: list[Built]) -> None:
    listed = components(REPOSITORY / "build" / "release" / "aegaeon-control.cdx.json")
    assert {name: one["version"] for name, one in listed.items()} == twice[0].packages
    assert all(one["externalReferences"][0]["hashes"] for one in listed.values())


def components(sbom: Path) -> dict[str, Any]:
    """By name."""
    body = json.loads(sbom.read_bytes())
    assert body["bomFormat"] == "CycloneDX"
    return {one["name"]: one for one in body["components"]}
