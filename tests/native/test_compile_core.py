"""Where a build of the scheduler's core is kept and put."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from aegaeon_scheduler import compiled

PROGRAM = Path(__file__).parents[2] / "native" / "compile_core.py"


@pytest.fixture
def compile_core(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "compiled", compiled)
    spec = importlib.util.spec_from_file_location("compile_core", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_folders_may_be_relative_and_a_build_is_taken_from_the_cache(
    compile_core: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a compiler that works as mypyc does, in a folder of its own, but takes no minutes."""
    builds: list[Path] = []

    def from_another_folder(scratch: Path) -> None:
        (scratch / "tree").mkdir()
        with contextlib.chdir(scratch / "tree"):
            (scratch / "lib" / "core").mkdir(parents=True)
            (scratch / "lib" / "core" / "part.so").write_bytes(b"code")
        builds.append(scratch)

    monkeypatch.setattr(compile_core, "_compile", from_another_folder)
    monkeypatch.chdir(tmp_path)
    for out in ("first", "second"):
        monkeypatch.setattr(sys, "argv", ["compile_core.py", "--cache", "cache", "--out", out])
        compile_core.main()
        assert (tmp_path / out / "core.part.so").read_bytes() == b"code"
        assert (tmp_path / out / compiled.SOURCES).read_text() == compiled.digest() + "\n"
    assert len(builds) == 1
    assert [path.name.startswith("core-") for path in (tmp_path / "cache").iterdir()] == [True]
