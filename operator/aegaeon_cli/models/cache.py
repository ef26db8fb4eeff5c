"""Makes the models once and keeps them: a folder that is there is whole, and a second call costs nothing.

The torch side is imported only when something must be made; a check alone takes milliseconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from aegaeon_cli.models.errors import ForeignError

MODEL_NAMES = ("llama", "mistral", "qwen2", "qwen3")
MANIFEST = "manifest.json"


class Manifest(TypedDict):
    """What the models were made by, each file's size in bytes by its path, and what each can answer."""

    recipe: str
    questions: dict[str, list[str]]
    files: dict[str, int]


def make_models(directory: Path, report: Callable[[str], None]) -> None:
    """Make the four models under `directory` (one folder for each name), unless they are there already.

    `report` gets lines for people, possibly from other threads. Raises ModelsError when `directory` holds something
    else or the standard library's sources are missing.
    """
    directory = directory.absolute()
    if is_current(directory):
        report(f"models are in {directory} already")
        return
    _refuse_foreign(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _make(making / "new", report)
        _publish(making, directory)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    report(f"models are in {directory}")


def is_current(directory: Path) -> bool:
    """Whether `directory` holds all models, whole, made by this recipe."""
    manifest = _manifest(directory)
    if manifest is None or manifest["recipe"] != recipe():
        return False
    return all(_size(directory / name) == size for name, size in manifest["files"].items())


def questions(directory: Path) -> dict[str, list[str]]:
    """By model, what those in `directory` have learnt to answer; empty when they were not made by make_models."""
    manifest = _manifest(directory)
    return manifest["questions"] if manifest else {}


def recipe() -> str:
    """A hash of the code of this package. Not of the Python whose library is the text: another one's models serve too,
    and two versions on one machine would make theirs in turn."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _manifest(directory: Path) -> Manifest | None:
    try:
        loaded = json.loads((directory / MANIFEST).read_bytes())
        return Manifest(
            recipe=str(loaded["recipe"]), questions=dict(loaded.get("questions", {})), files=dict(loaded["files"])
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _refuse_foreign(directory: Path) -> None:
    taken = directory.is_file() or (directory.is_dir() and any(directory.iterdir()))
    if taken and _manifest(directory) is None:
        raise ForeignError(f"{directory} holds something else than these models; name an empty or a new folder")


def _make(directory: Path, report: Callable[[str], None]) -> None:
    from aegaeon_cli.models.training import train_all  # here, because torch takes seconds to import

    learnt = train_all(directory, report)
    files = {str(path.relative_to(directory)): path.stat().st_size for path in directory.rglob("*") if path.is_file()}
    (directory / MANIFEST).write_text(json.dumps(Manifest(recipe=recipe(), questions=learnt, files=files), indent=1))


def _publish(making: Path, directory: Path) -> None:
    """Put the finished folder in its place; if another process was quicker with the same, its folder stays."""
    if directory.exists() and not is_current(directory):
        os.rename(directory, making / "old")
    try:
        os.rename(making / "new", directory)
    except OSError:
        if not is_current(directory):
            raise
