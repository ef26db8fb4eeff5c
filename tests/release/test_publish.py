"""What `make release` says and does: nothing by itself; with PUBLISH=1 it signs the digests that were pushed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "containers" / "release" / "publish"
DIGEST = "sha256:" + "ab" * 32
# Programs that need a registry and an identity: each notes how it was called, and buildah which digest it pushed.
NOTE = '#!/bin/sh\necho "$(basename "$0") $*" >> "$CALLS"\n'
PROGRAMS = dict.fromkeys(("cosign", "helm", "uv"), NOTE) | {"buildah": NOTE + f'printf %s {DIGEST} > "$3"\n'}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of one commit with a chart, a wheel and the programs."""
    folder = tmp_path / "checkout"
    (folder / "containers" / "release").mkdir(parents=True)
    shutil.copy(SCRIPT, folder / "containers" / "release")
    (folder / ".gitignore").write_text("/build/\n/dist/\n")
    (folder / "dist").mkdir()
    (folder / "dist" / "aegaeon-1.2.3-cp311-cp311-manylinux_2_34_x86_64.whl").touch()
    (tmp_path / "bin").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "Begin")
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", folder, *words], check=True)


def publish(checkout: Path, **more: str) -> tuple[int, str, list[str]]:
    """Exit code, what it printed, and which programs it called."""
    calls = checkout.parent / "calls"
    env = {
        "PATH": f"{checkout.parent / 'bin'}:{os.environ['PATH']}",
        "VERSION": "1.2.3",
        "IMAGES": "control engine",
        "CALLS": str(calls),
    }
    done = subprocess.run(
        ["bash", "containers/release/publish", "registry.example/a"],
        cwd=checkout, env={**env, **more}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, calls.read_text().splitlines() if calls.exists() else []


def test_by_itself_it_says_every_command_and_runs_none(checkout: Path) -> None:
    code, said, called = publish(checkout)
    assert (code, called) == (0, [])
    programs = [line.split()[0] for line in said.splitlines()]
    assert programs == ["buildah", "cosign", "cosign"] * 2 + ["helm", "helm", "cosign", "uv"]


def test_what_is_signed_is_the_digest_that_was_pushed(checkout: Path) -> None:
    git(checkout, "tag", "v1.2.3")
    code, _, called = publish(checkout, PUBLISH="1")
    assert code == 0
    signed = [line.split()[-1] for line in called if line.startswith(("cosign sign ", "cosign attest"))]
    assert signed == [f"registry.example/a/aegaeon-{name}@{DIGEST}" for name in ("control", "engine") for _ in range(2)]
    assert "helm push build/release/aegaeon-1.2.3.tgz oci://registry.example/a/charts" in called
    assert called[-1] == "uv publish dist/aegaeon-1.2.3-cp311-cp311-manylinux_2_34_x86_64.whl"


def test_it_refuses_a_commit_without_the_versions_tag(checkout: Path) -> None:
    git(checkout, "tag", "v1.2.2")
    code, said, called = publish(checkout, PUBLISH="1")
    assert (code, called) == (1, [])
    assert "no tag v1.2.3 at this commit" in said


def test_it_refuses_a_work_tree_that_differs_from_its_commit(checkout: Path) -> None:
    git(checkout, "tag", "v1.2.3")
    (checkout / "unknown.py").touch()
    code, said, called = publish(checkout, PUBLISH="1")
    assert (code, called) == (1, [])
    assert "the work tree differs from its commit" in said
