"""Two distributions that own one file are found, and equal files are none of the check's business."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).parents[2] / "containers" / "file_owners.py"


def distribution(site: Path, name: str, **files: str) -> None:
    folder = site / f"{name}-1.dist-info"
    folder.mkdir(parents=True)
    rows = [f"{path}.py,sha256={content},1\n" for path, content in files.items()]
    (folder / "RECORD").write_text("".join([*rows, f"{folder.name}/RECORD,,\n"]))


def checked(site: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, CHECK, site], stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


def test_a_file_of_two_distributions_with_different_content_is_named(tmp_path: Path) -> None:
    distribution(tmp_path, "one", shared="a", same="s", own="x")
    distribution(tmp_path, "two", shared="b", same="s")
    code, said = checked(tmp_path)
    assert code == 1
    assert "one-1 and two-1 own 1 same files with different content, such as shared.py" in said


def test_equal_files_of_two_distributions_are_harmless(tmp_path: Path) -> None:
    distribution(tmp_path, "one", same="s", own="x")
    distribution(tmp_path, "two", same="s")
    code, said = checked(tmp_path)
    assert (code, said.split(": ")[1]) == (0, "2 files, 0 of several distributions that differ\n")
