"""Every import of our packages, lazy ones included, tried with this Python: what an image's environment must have.

imports.py FOLDER [LEFT_OUT...]: the folder of the packages that the image holds, and modules that nothing there starts.
What is for type checkers alone is left out.
"""

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path


def imports(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """(module, name in it or None) of each import statement outside `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)
        yield from imports(node)


def why_not(module: str, name: str | None) -> str | None:
    """The error of an import, if it has one."""
    try:
        found = importlib.import_module(module)
        if name not in (None, "*") and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    return None


def main(folder: Path, left_out: tuple[str, ...]) -> int:
    sys.path.insert(0, str(folder))
    wanted: dict[tuple[str, str | None], str] = {}
    for file in sorted(folder.glob("*/**/*.py")):
        if str(file.relative_to(folder)).startswith(left_out):
            continue
        module = ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        if not module.endswith("__main__"):
            wanted.setdefault((module, None), "itself")
        for one in imports(ast.parse(file.read_text("utf-8"))):
            if not ".".join(filter(None, one)).replace(".", "/").startswith(left_out):
                wanted.setdefault(one, str(file.relative_to(folder)))
    failed = {one: why for one in wanted if (why := why_not(*one)) is not None}
    for (module, name), why in failed.items():
        print(f"{wanted[module, name]}: {module}{f'.{name}' if name else ''}: {why}")
    print(f"{len(wanted)} imports, {len(failed)} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), tuple(sys.argv[2:])))
