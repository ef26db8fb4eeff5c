"""What set-up needs of the machine beside Python, said in one sentence before anything is installed.

Its argument is what this Python is called: Debian names its packages after it.
"""

import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path


def missing(python: str) -> dict[str, str]:
    """Debian's package of each thing that is not there."""
    there = {
        "a C++ compiler": ("g++", shutil.which("c++")),
        "Python's headers": (f"{python}-dev", (Path(sysconfig.get_path("include")) / "Python.h").exists()),
        "Python's venv": (f"{python}-venv", importlib.util.find_spec("ensurepip")),
    }
    return {thing: package for thing, (package, found) in there.items() if not found}


if __name__ == "__main__":
    if lacking := missing(sys.argv[1]):
        sys.exit(f"missing: {', '.join(lacking)}; Debian, Ubuntu: apt-get install {' '.join(lacking.values())}")
