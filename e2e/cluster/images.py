"""Images without a registry: built by buildah, kept as archives, loaded into every node."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from e2e.cluster.layout import Layout
from e2e.cluster.node import PAUSE, ctr
from e2e.cluster.processes import run

REPOSITORY = Path(__file__).parents[2]
# As the chart names them by default.
VERSION = str(tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["version"])
_NAMES = {target: f"localhost/aegaeon-{target}" for target in ("control", "engine", "engine-vllm")}
_COREDNS = "localhost/coredns:1"
_NON_ROOT = 65532
BASE = "localhost/aegaeon-base:3"
REDIS = "localhost/aegaeon-redis:1"
BUILD = "localhost/aegaeon-build:bookworm"
# Debian packages of each. A change changes the tag.
_PACKAGES = {
    BASE: "python3,ca-certificates,libnuma1",
    BUILD: "python3,ca-certificates,python3-venv,python3-dev,g++",
    REDIS: "redis-server",
}
# Packages that a base image of containers does not need.
_NEEDLESS = (
    *(f"usr/share/{name}" for name in ("doc", "man", "locale", "info", "perl5", "bash-completion", "zoneinfo")),
    *("var/lib/apt", "var/lib/dpkg", "var/cache", "usr/lib/apt"),
    *(f"usr/lib/x86_64-linux-gnu/{name}" for name in ("perl-base", "gconv")),
)
_SUITE = "bookworm"
# What an image is made of; a change of these makes a new one.
_SOURCES = ("Containerfile", "containers", "operator", "proto", "sidecar", "native")
_PAUSE_SOURCE = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void stop(int sign) { (void)sign; _exit(0); }
static void reap(int sign) { (void)sign; while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) {
  signal(SIGTERM, stop); signal(SIGINT, stop); signal(SIGCHLD, reap);
  for (;;) pause();
}
"""


def system_images(layout: Layout) -> list[Path]:
    """Archives of what the cluster itself runs: the pause process and DNS."""
    return [_pause(layout), of_program(layout, _COREDNS, layout.binaries / "coredns", user=0)]  # of its port, 53


def product_images(layout: Layout) -> list[Path]:
    """Archives of our own images. The engines' have neither torch nor vLLM: nodes bring them (see node.py)."""
    digest = _digest_of_sources()
    return [_product(layout, f"{name}:{VERSION}", target, digest) for target, name in _NAMES.items()]


def tag_product(layout: Layout, tag: str) -> None:
    """The same images under another tag, in every node: a new version, as far as Kubernetes can tell."""
    for node in layout.nodes:
        for name in _NAMES.values():
            ctr(node, "images", "tag", "--force", f"{name}:{VERSION}", f"{name}:{tag}")


def redis(layout: Layout) -> Path:
    """Archive of a Redis, for the chart's `redis.bundled`."""
    ensure_base(layout, REDIS)
    archive = layout.images / f"redis-{hashlib.sha256(REDIS.encode()).hexdigest()[:16]}.tar"
    if not archive.exists():
        _push(layout, REDIS, archive)
    return archive


def load(layout: Layout, archives: list[Path]) -> None:
    """Into every node, side by side."""
    with ThreadPoolExecutor(len(layout.nodes)) as pool:
        for archive in archives:
            list(pool.map(lambda node, file=archive: ctr(node, "images", "import", str(file)), layout.nodes))


def _product(layout: Layout, name: str, target: str, digest: str) -> Path:
    archive = layout.images / f"{target}-{digest}.tar"
    if not archive.exists():
        click.echo(f"building {name}", err=True)
        for base in (BASE, BUILD):
            ensure_base(layout, base)
        flags = [f"--target={target}", f"--build-arg=BASE_IMAGE={BASE}", f"--build-arg=BUILD_IMAGE={BUILD}"]
        flags += ["--build-arg=ENGINE_LOCK=containers/control.lock", "--build-arg=VLLM_LOCK=containers/none.lock"]
        flags += ["--build-arg=ENGINE_PACKAGES=", "--build-arg=VLLM_PACKAGES="]
        flags += ["--layers", "--timestamp=0"]
        _build(layout, name, REPOSITORY / "Containerfile", REPOSITORY, archive, *flags)
    return archive


def ensure_base(layout: Layout, name: str) -> None:
    """A small Debian from its own packages, kept in buildah's store."""
    if name in _buildah(layout, "images", "--format", "{{.Name}}:{{.Tag}}").split():
        return
    click.echo(f"making {name} (once)", err=True)
    with tempfile.TemporaryDirectory(dir=layout.images) as scratch:
        folder = Path(scratch) / "root"
        run("debootstrap", "--variant=minbase", f"--include={_PACKAGES[name]}", _SUITE, str(folder))
        for needless in _NEEDLESS if name != BUILD else ():
            shutil.rmtree(folder / needless, ignore_errors=True)
        containerfile = Path(scratch) / "Containerfile"
        containerfile.write_text("FROM scratch\nCOPY root/ /\n", "utf-8")
        _buildah(layout, "bud", "-q", "--timestamp=0", "-t", name, "-f", str(containerfile), scratch)


def of_program(
    layout: Layout, name: str, program: Path, user: int = _NON_ROOT, options: Sequence[str] = (), path: str = ""
) -> Path:
    """An image of one static program, which is what it starts, with these options before those of a pod. `path`: where
    it is in the image, in the place of /NAME."""
    start = json.dumps([path or f"/{program.name}", *options])
    text = f"FROM scratch\nCOPY {program.name} {path or '/'}\nENV PATH=/\nUSER {user}:{user}\nENTRYPOINT {start}\n"
    return of_files(layout, name, text, program)


def of_files(layout: Layout, name: str, containerfile: str, *files: Path) -> Path:
    """An image of these files, the first of which names the archive; built once for each content."""
    layout.images.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(containerfile.encode())
    for file in files:
        digest.update(file.read_bytes())
    archive = layout.images / f"{files[0].name}-{digest.hexdigest()[:16]}.tar"
    if not archive.exists():
        with tempfile.TemporaryDirectory(dir=layout.images) as context:
            for file in files:
                os.link(file, Path(context) / file.name)
            (Path(context) / "Containerfile").write_text(containerfile, "utf-8")
            _build(layout, name, Path(context) / "Containerfile", Path(context), archive)
    return archive


def _build(layout: Layout, name: str, containerfile: Path, context: Path, archive: Path, *flags: str) -> None:
    """buildah from a folder to an archive."""
    certificates = "--volume=/etc/ssl/certs:/etc/ssl/certs:ro"
    _buildah(layout, "bud", "-q", certificates, *flags, "-t", name, "-f", str(containerfile), str(context))
    _push(layout, name, archive)


def _push(layout: Layout, name: str, archive: Path) -> None:
    """From buildah's store to an archive; older archives of the same kind go."""
    stem = archive.name.rpartition("-")[0]
    unfinished = archive.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    _buildah(layout, "push", "-q", name, f"docker-archive:{unfinished}:{name}")
    for old in layout.images.glob(f"{stem}-{'[0-9a-f]' * 16}.tar"):
        old.unlink()
    unfinished.rename(archive)


def builder(layout: Layout) -> list[str]:
    """buildah with a store of its own; chroot, because there is no container engine."""
    layout.images.mkdir(parents=True, exist_ok=True)
    store = layout.images / "store"
    at = (f"--root={store}/root", f"--runroot={store}/run", "--storage-driver=overlay")
    apart = ("unshare", "--mount", "--propagation", "private")  # what it mounts ends with it
    return [*apart, "env", "BUILDAH_ISOLATION=chroot", "buildah", *at]


def _buildah(layout: Layout, *words: str) -> str:
    return run(*builder(layout), *words)


def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    listed = run("git", "-C", str(REPOSITORY), "ls-files", "-co", "--exclude-standard", "--", *_SOURCES)
    for line in sorted(listed.splitlines()):
        if (file := REPOSITORY / line).is_file():
            digest.update(line.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _pause(layout: Layout) -> Path:
    layout.images.mkdir(parents=True, exist_ok=True)
    program = layout.images / "pause"
    if not program.exists():
        run("cc", "-static", "-Os", "-s", "-o", str(program), "-x", "c", "-", stdin=_PAUSE_SOURCE)
    return of_program(layout, PAUSE, program)
