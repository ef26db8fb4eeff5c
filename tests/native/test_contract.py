"""The stub is the contract: every name in it exists in the module, and nothing else does."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import aegaeon_native
from aegaeon_native import NativeError, OutOfSlabs, _core

STUB = Path(aegaeon_native.__file__).with_name("_core.pyi")


def stubbed() -> dict[str, dict[str, ast.FunctionDef | None]]:
    tree = ast.parse(STUB.read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {c.name: {f.name: f for f in c.body if isinstance(f, ast.FunctionDef)} for c in classes}


def own_names(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")}


def functions_and_constants() -> set[str]:
    body = ast.parse(STUB.read_text()).body
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return functions | {
        str(node.target.id) for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def test_the_module_has_exactly_the_names_of_the_stub() -> None:
    module = {name: value for name, value in vars(_core).items() if not name.startswith("__")}
    classes = {name for name, value in module.items() if inspect.isclass(value)}
    assert classes == set(stubbed())
    assert set(module) - classes == functions_and_constants()
    assert set(aegaeon_native.__all__) == set(module)


@pytest.mark.parametrize("name", sorted(stubbed()))
def test_a_class_has_exactly_the_members_of_its_stub(name: str) -> None:
    members = {member for member in stubbed()[name] if not member.startswith("_")}
    if not issubclass(getattr(_core, name), Exception):
        assert own_names(getattr(_core, name)) == members


@pytest.mark.parametrize("name", sorted(stubbed()))
def test_methods_name_their_arguments_as_the_stub_does(name: str) -> None:
    for member, node in stubbed()[name].items():
        signatures = getattr(getattr(getattr(_core, name), member), "__nb_signature__", None)
        if node is None or signatures is None:
            continue
        wanted = [arg.arg for arg in node.args.args if arg.arg != "self"]
        for signature, *_ in signatures:
            assert re.findall(r"[(,] ?(\w+): ", signature) == wanted, f"{name}.{member}"


def test_errors_form_the_tree_of_the_stub() -> None:
    assert issubclass(NativeError, RuntimeError)
    assert issubclass(OutOfSlabs, NativeError)


def test_the_processor_has_one_of_the_levels() -> None:
    assert aegaeon_native.cpu_level() in {"baseline", "avx2", "avx512"}
