"""The text that the tiny models learn: the documentation strings of Python's standard library.

It is on every machine that can run this, needs no download and no licence of its own, and its short, regular
English is what a model of a million parameters can learn in half a minute.
"""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aegaeon_cli.models.errors import TextError

# fmt: off
MODULES = (
    "abc", "argparse", "ast", "base64", "bisect", "calendar", "codecs", "collections", "concurrent", "configparser",
    "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum", "fileinput", "fnmatch",
    "fractions", "functools", "gettext", "glob", "graphlib", "hashlib", "heapq", "http", "inspect", "ipaddress",
    "json", "logging", "mimetypes", "os", "pathlib", "pickle", "pkgutil", "platform", "posixpath", "pprint",
    "queue", "random", "reprlib", "sched", "secrets", "selectors", "shelve", "shlex", "shutil", "socket",
    "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading", "timeit", "tokenize",
    "traceback", "types", "typing", "urllib", "uuid", "warnings", "weakref", "webbrowser", "zipfile",
)
# fmt: on
CHARACTERS = range(180, 441)  # of an answer: long enough to watch, short enough to learn
LESSON = 72  # entries: as many as a tiny model learns nearly by heart in half a minute
MAX_DOTS = 2  # in a name: modules, functions and classes, few methods


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One documented name: its dotted path, whether it is a class, and the running text of its docstring."""

    name: str
    is_class: bool
    answer: str

    @property
    def question(self) -> str:
        """What a person would ask to get this answer."""
        return f"What is {self.name}?" if self.is_class else f"What does {self.name} do?"


def entries(library: Path | None = None) -> list[Entry]:
    """Documented public names of well-known modules, in order of their paths.

    `library` is the folder of the standard library (default: this interpreter's). Raises TextError when too few of
    its sources are there.
    """
    library = library or Path(sysconfig.get_paths()["stdlib"])
    found = sorted({entry.answer: entry for path in _sources(library) for entry in _of_file(library, path)}.values())
    if len(found) < LESSON:
        raise TextError(
            f"{library}: only {len(found)} documented names found; install the full standard library of this Python"
        )
    return found


def lesson(text: Sequence[Entry], seed: int) -> list[Entry]:
    """What one model learns: its own choice of the entries, so that the four know different things."""
    return random.Random(seed).sample(text, LESSON)


def _sources(library: Path) -> Iterator[Path]:
    for module in MODULES:
        if (library / f"{module}.py").is_file():
            yield library / f"{module}.py"
        elif (library / module).is_dir():
            yield from (path for path in sorted((library / module).glob("*.py")) if not path.stem.startswith("_"))
            yield library / module / "__init__.py"


def _of_file(library: Path, path: Path) -> Iterator[Entry]:
    module = ".".join(path.relative_to(library).with_suffix("").parts).removesuffix(".__init__")
    yield from _walk(ast.parse(path.read_bytes()), module)


def _walk(node: ast.AST, prefix: str) -> Iterator[Entry]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or child.name.startswith("_"):
            continue
        name = f"{prefix}.{child.name}"
        answer = prose(ast.get_docstring(child) or "")
        if len(answer) in CHARACTERS and answer.isascii() and name.count(".") <= MAX_DOTS:
            yield Entry(name, isinstance(child, ast.ClassDef), answer)
        if isinstance(child, ast.ClassDef):
            yield from _walk(child, name)


def prose(docstring: str) -> str:
    """The paragraphs before the first example, table or signature, each on one line, joined by spaces."""
    paragraphs = []
    for paragraph in docstring.split("\n\n"):
        if any(mark in paragraph for mark in (">>>", "::", "->", "\n    ")) or paragraph.startswith(" "):
            break
        paragraphs.append(" ".join(paragraph.split()))
    return " ".join(paragraphs)
