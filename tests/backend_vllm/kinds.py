"""vLLM's registry and the bases of its classes, read from source: what each architecture is, without an import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

STATE = frozenset({"IsHybrid", "HasInnerState", "IsAttentionFree"})
"""bases of classes whose sequences have a state"""
Registered = dict[str, tuple[str, str]]


def tables(root: Path) -> dict[str, Registered]:
    """Of vLLM's registry, by their names: by architecture its module and class."""
    tree = ast.parse((root / "model_executor/models/registry.py").read_text("utf-8"))
    registered: dict[str, Registered] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name):
            registered[node.targets[0].id] = dict(_entries(node.value))
    return registered


def _entries(table: ast.Dict) -> Iterator[tuple[str, tuple[str, str]]]:
    """Those that are written out: tables that are made of other tables add no architecture."""
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
            module, name = ast.literal_eval(value)
            yield str(key.value), (module, name)


def bases(root: Path, module: str, name: str) -> set[str]:
    """Names of a class's bases, theirs as well, and its own."""
    dotted = module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}"
    return _bases(root, _file(root.parent.joinpath(*dotted.split("."))), name)


def _bases(root: Path, path: Path | None, name: str) -> set[str]:
    if path is None:
        return {name}
    classes, imports = _read(path)
    if name in classes:
        return {name}.union(*(_bases(root, path, base) for base in classes[name] if base != name))
    if name not in imports:
        return {name}
    level, module, real = imports[name]
    if not level and not module.startswith("vllm"):
        return {name, real}
    start = root.parent if not level else path.parents[level - 1]
    return {name} | _bases(root, _file(start.joinpath(*filter(None, module.split(".")))), real)


def _file(stem: Path) -> Path | None:
    candidates = stem.with_name(f"{stem.name}.py"), stem / "__init__.py"
    return next((path for path in candidates if path.is_file()), None)


@cache
def _read(path: Path) -> tuple[dict[str, list[str]], dict[str, tuple[int, str, str]]]:
    """Classes of a module with their bases, and what it imports: by name its level, module and name there."""
    classes: dict[str, list[str]] = {}
    imports: dict[str, tuple[int, str, str]] = {}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, [_last(base) for base in node.bases])
        elif isinstance(node, ast.ImportFrom):
            origin = node.level, node.module or ""
            imports |= {alias.asname or alias.name: (*origin, alias.name) for alias in node.names}
    return classes, imports


def _last(base: ast.expr) -> str:
    """The class's own name, without its module and its parameters."""
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]
