#!/bin/sh
# metadata.sh PYPROJECT FOLDER: by what importlib.metadata knows the version, where our packages are copied, not installed.
set -e
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$1")
mkdir "$2/aegaeon-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: aegaeon\nVersion: %s\n' "$version" > "$2/aegaeon-$version.dist-info/METADATA"
