"""What pods of the product need on the nodes: its images, and the tiny models where the examples look for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from aegaeon_cli.models import make_models
from e2e.cluster import images
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout

# Of every node, as in examples/kubernetes.
MODELS = "/var/lib/aegaeon/models"


def load(layout: Layout) -> Path:
    """Both, into every node; what is there already is replaced. Returns the models' folder on this machine."""
    if not layout.nodes:
        raise ClusterError("images and models are loaded into nodes, and this cluster has none")
    images.load(layout, images.product_images(layout))
    made = layout.binaries.parents[1] / "models"
    made.mkdir(parents=True, exist_ok=True)
    make_models(made, lambda line: click.echo(line, err=True))
    put_models(layout, made)
    return made


def put_models(layout: Layout, models: Path) -> None:
    """Copy a folder of models into every node, beside what is there."""
    for node in layout.nodes:
        folder = node.on_disk(MODELS)
        shutil.copytree(models, folder, dirs_exist_ok=True)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
