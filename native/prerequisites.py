"""Check the machine's prerequisites beside Python, reported in one sentence before anything is installed.

The argument is the name of this Python: Debian names its packages after it.
"""

import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path


def missing(python: str) -> dict[str, str]:
    """Debian's package of each missing prerequisite."""
    required = {
        "a C++ compiler": ("g++", shutil.which("c++")),
        "Python's headers": (f"{python}-dev", (Path(sysconfig.get_path("include")) / "Python.h").exists()),
        "Python's venv": (f"{python}-venv", importlib.util.find_spec("ensurepip")),
    }
    return {thing: package for thing, (package, present) in required.items() if not present}


if __name__ == "__main__":
    if lacking := missing(sys.argv[1]):
        sys.exit(f"missing: {', '.join(lacking)}; Debian, Ubuntu: apt-get install {' '.join(lacking.values())}")
