"""When the compiled core is imported: never one of other sources, never silently where it was demanded."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from aegaeon_scheduler import COMPILED, compiled
from aegaeon_scheduler.core import scheduler


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What looks like a build of the present sources; no finder stays behind."""
    monkeypatch.setattr(compiled, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delenv(compiled.CHOICE, raising=False)
    (tmp_path / compiled.SOURCES).write_text(compiled.digest() + "\n")
    (tmp_path / f"{compiled.GROUP}__mypyc{EXTENSION_SUFFIXES[0]}").touch()
    return tmp_path


def test_what_runs_here_is_what_is_said() -> None:
    assert (not scheduler.__file__.endswith(".py")) == COMPILED


def test_a_build_of_these_sources_is_used_unless_the_interpreter_is_wanted(
    build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiled.use()
    monkeypatch.setenv(compiled.CHOICE, "interpreted")
    assert not compiled.use()


@pytest.mark.parametrize("missing", ["other sources", "another Python", "nothing"])
def test_any_other_build_is_not_used_and_an_error_where_it_is_demanded(
    build: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "other sources":
        (build / compiled.SOURCES).write_text("0" * 64)
    for file in build.iterdir() if missing == "nothing" else build.glob("*.so"):
        if missing != "other sources":
            file.unlink()

    assert not compiled.use()
    monkeypatch.setenv(compiled.CHOICE, "compiled")
    with pytest.raises(ImportError, match="make compiled-core"):
        compiled.use()


def test_a_choice_that_is_none_is_an_error(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.CHOICE, "yes")
    with pytest.raises(ImportError, match="set it to compiled or interpreted"):
        compiled.use()


def test_the_digest_is_of_names_and_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_ROOT", tmp_path)
    seen = set()
    for name, content in (("a.py", "x"), ("a.py", "y"), ("b.py", "x")):
        (tmp_path / name).write_text(content)
        seen.add(compiled.digest())
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    assert len(seen | {compiled.digest()}) == 4
    assert compiled.modules() == ["aegaeon_scheduler.core.a", "aegaeon_scheduler.core.c"]


@pytest.mark.skipif(not COMPILED, reason="the core is interpreted here: make test-core")
def test_all_of_the_core_but_what_the_log_reads_is_compiled() -> None:
    names = compiled.modules()
    assert len(names) > 50
    said = "import sys, importlib; print(*[importlib.import_module(n).__file__ for n in sys.argv[1:]], sep='\\n')"
    files = subprocess.run([sys.executable, "-c", said, *names], capture_output=True, text=True, check=True).stdout
    # mypyc names files as if they lay in folders of their packages.
    assert all(compiled.FOLDER in Path(file).parents for file in files.splitlines())
