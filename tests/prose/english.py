"""Plain English that a list of words cannot hold: rules for names, first words of docstrings and names of modules.

`python -m prose.english` compares the findings of each package with ratchet.txt, which may only fall; `--lower` lowers
it to what remains; with PATHs it prints the findings below those.
"""

import ast
import gc
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pool
from pathlib import Path

from prose.check import entries

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RATCHET = HERE / "ratchet.txt"
PRODUCT = ("operator/", "sidecar/", "proto/", "native/")  # names of modules; a test's is a part of a sentence
RULES = ("name", "docstring", "module")
COMMAND = "PYTHONPATH=tests .venv/bin/python -m prose.english"  # from the root of the repository

# Pronouns, participles and adverbs: a name is a noun of the field that says which thing, or a verb.
NAMES = frozenset(
    ("one", "found", "said", "given", "there", "here", "mine", "asked", "heard", "wanted", "whole", "others")
)
# A docstring begins with a verb ("Return ...") or with a noun ("The pods ..."), not with a clause used as a noun.
STARTS = frozenset(("what", "whether", "of", "by", "it", "those"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
ADVICE = {  # what to write instead
    "name": "a name says which thing, not only that there is one",
    "docstring": f"begin it with a verb or a noun, not with {', '.join(sorted(STARTS))}",
    "module": "name it by words of tests/prose/terms.txt, to which a term of the field may be added",
}
BINDING = {  # the nodes that define a name, and their field that holds it
    ast.Name: "id",
    ast.Attribute: "attr",
    ast.arg: "arg",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.MatchMapping: "rest",
    ast.alias: "asname",
}
LEAVES = frozenset((ast.Load, ast.Store, ast.Constant))  # most nodes: no name is below them

Counts = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Finding:
    """A place that breaks a rule."""

    rule: str
    path: str
    line: int
    text: str


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Walk a tree; ast.walk takes twice as long, and the whole tree of sources is walked at every check."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        yield node
        for value in node.__dict__.values():
            if isinstance(value, list):
                stack.extend(child for child in value if isinstance(child, ast.AST))
            elif isinstance(value, ast.AST) and type(value) not in LEAVES:
                stack.append(value)


def _bound(node: ast.AST) -> str | None:
    """Return the name that a node defines: a variable, parameter, stored attribute or function."""
    field = BINDING.get(type(node))
    return None if field is None or isinstance(getattr(node, "ctx", None), ast.Load) else getattr(node, field)


def _first_word(node: ast.AST) -> str:
    if not isinstance(node, DOCUMENTED):
        return ""
    words = (ast.get_docstring(node, clean=False) or "").split(maxsplit=1)
    return words[0].rstrip(",.;:") if words else ""


def findings(path: str, source: str, terms: frozenset[str]) -> Iterator[Finding]:
    """Yield the places of a source that break a rule; `terms` are the words that a module's name may consist of."""
    if path.startswith(PRODUCT):
        stem = Path(path).stem.strip("_")
        yield from (Finding("module", path, 1, word) for word in stem.split("_") if word not in terms)
    for node in _nodes(ast.parse(source, path)):
        if (name := _bound(node)) in NAMES:
            yield Finding("name", path, getattr(node, "lineno", 1), str(name))
        if (word := _first_word(node)).lower() in STARTS:
            yield Finding("docstring", path, getattr(node, "lineno", 1), word)


def _findings_in(terms: frozenset[str], path: str) -> list[Finding]:
    gc.disable()  # in a process of its own: the trees are large, free of cycles and short-lived
    return list(findings(path, (ROOT / path).read_text(encoding="utf-8"), terms))


def package(path: str) -> str:
    """Return the first two folders of a path: findings are counted by these."""
    return "/".join(Path(path).parent.parts[:2])


def counts(present: list[Finding], paths: list[str]) -> Counts:
    """Return each package's findings, in the order of RULES."""
    tally = Counter((package(finding.path), finding.rule) for finding in present)
    return {name: tuple(tally[name, rule] for rule in RULES) for name in sorted({package(path) for path in paths})}


def compared(limits: Counts, present: Counts) -> Iterator[str]:
    """Yield a line for each number of a package that is not the one in the ratchet."""
    for name in sorted({*limits, *present}):
        pairs = zip(RULES, limits.get(name, (0, 0, 0)), present.get(name, (0, 0, 0)), strict=True)
        for rule, limit, number in pairs:
            if number > limit:
                yield f"{name}: {number} {rule}s, at most {limit}: {ADVICE[rule]}; `{COMMAND} {name} | grep {rule}`"
            elif number < limit:
                yield f"{name}: {number} {rule}s, {limit} in {RATCHET.name}: `{COMMAND} --lower`, and commit that file"


def lowered(limits: Counts, present: Counts) -> Counts:
    """Return limits that are nowhere above those in force."""
    return {name: tuple(map(min, limits.get(name, (0, 0, 0)), numbers)) for name, numbers in present.items()}


def read(path: Path) -> Counts:
    """Read a ratchet: on each line a package and its numbers, in the order of RULES."""
    rows = (line.split() for line in entries(path))
    return {name: tuple(int(number) for number in numbers) for name, *numbers in rows}


def write(path: Path, limits: Counts) -> None:
    """Write a ratchet."""
    head = f"# Findings of prose.english that remain, which may only fall. package: {', '.join(RULES)}\n"
    rows = (f"{name:32}" + "".join(f"{number:5}" for number in numbers) + "\n" for name, numbers in limits.items())
    path.write_text(head + "".join(rows), encoding="utf-8")


def tracked(patterns: list[str]) -> list[str]:
    """Return the sources that git's path patterns name, generated ones left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted(name for name in listed if name.endswith(".py") and "_pb2" not in name and (ROOT / name).exists())


def main() -> int:
    """Compare with, or lower, the ratchet; or print the findings of paths; return the exit status."""
    paths = tracked([argument for argument in sys.argv[1:] if argument != "--lower"] or ["*.py"])
    terms = frozenset(entries(HERE / "terms.txt"))
    with Pool() as pool:
        lists = pool.map(partial(_findings_in, terms), paths, chunksize=16)
    present = [finding for chunk in lists for finding in chunk]
    if sys.argv[1:] not in ([], ["--lower"]):
        sys.stdout.writelines(f"{entry.path}:{entry.line}: {entry.rule} `{entry.text}`\n" for entry in present)
        return 0
    now = counts(present, paths)
    limits = read(RATCHET)
    if sys.argv[1:] == ["--lower"]:
        limits = lowered(limits, now)
        write(RATCHET, limits)
    differences = list(compared(limits, now))
    sys.stdout.writelines(f"{line}\n" for line in differences or [f"prose: {len(paths)} sources, names and docstrings"])
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
