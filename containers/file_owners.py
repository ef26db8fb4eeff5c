#!/usr/bin/env python3
"""Files that two distributions of an environment own with different content: which content lies there is chance, since
installers write packages side by side. file_owners.py SITE_PACKAGES... ends with 1 when there are any."""

import csv
import sys
from collections import Counter, defaultdict
from pathlib import Path


def owners(site: Path) -> dict[str, dict[str, str]]:
    """The hash of each file by the distribution that has it in its RECORD."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for record in site.glob("*.dist-info/RECORD"):
        with record.open(encoding="utf-8", newline="") as lines:
            for path, content, _ in csv.reader(lines):
                if content:
                    found[path][record.parent.name.removesuffix(".dist-info")] = content
    return found


def collisions(site: Path) -> dict[str, tuple[str, ...]]:
    """The owners of each file that has several who differ."""
    return {path: tuple(sorted(by)) for path, by in owners(site).items() if len(set(by.values())) > 1}


def main(sites: list[Path]) -> int:
    bad = 0
    for site in sites:
        found = collisions(site)
        for names, count in Counter(found.values()).items():
            example = next(path for path, by in found.items() if by == names)
            print(f"{site}: {' and '.join(names)} own {count} same files with different content, such as {example}")
        bad += len(found)
        print(f"{site}: {len(owners(site))} files, {len(found)} of several distributions that differ")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main([Path(site) for site in sys.argv[1:]]))
