"""Check the paths of clean.txt, or the named ones, against words.txt: `python -m prose [PATH ...]`."""

import subprocess
import sys
from pathlib import Path

from prose.check import entries, hits, words

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SUFFIXES = {".md", ".py", ".pyi", ".cpp", ".hpp", ".cu", ".proto", ".yaml", ".yml", ".tpl", ".sh"}


def tracked(paths: list[str]) -> list[str]:
    """Return the tracked documents, sources and manifests that git's path patterns name."""
    listed = subprocess.run(["git", "ls-files", "--", *paths], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.splitlines() if Path(name).suffix in SUFFIXES]


def main() -> int:
    """Print each banned expression and return the exit status."""
    banned = words(HERE / "words.txt")
    names = tracked(sys.argv[1:] or list(entries(HERE / "clean.txt")))
    reported = [hit for name in names for hit in hits(name, (ROOT / name).read_text(encoding="utf-8"), banned)]
    report = "\n".join(reported) if reported else f"prose: {len(names)} files use the field's terms"
    sys.stdout.write(report + "\n")
    return 1 if reported else 0


if __name__ == "__main__":
    sys.exit(main())
