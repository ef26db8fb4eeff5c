#!/usr/bin/env bash
# `dry.sh PYTHON [WHEELS [SITE]]`: packs the last commit and runs the calls of short.sh in small on a CPU, in a network
# namespace of their own where this user may make one, then what is left of the plan. The folder is packed anew for each
# call, as it is carried anew, with a wheel that no Python here has. Everything lies in build/gpu/dry.
set -euo pipefail
python=$1 site=${3:-} dry=$PWD/build/gpu/dry
wheels=$dry/wheels
rm -rf "$dry" && mkdir -p "$dry/out" "$wheels" "$dry/home"
[ -z "${2:-}" ] || cp -r "$2/." "$wheels"
.venv/bin/python - "$wheels/carried-1-py3-none-any.whl" <<'END'
import sys, zipfile

with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    wheel.writestr("carried.py", "")
    wheel.writestr("carried-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1\n")
    wheel.writestr("carried-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("carried-1.dist-info/RECORD", "")
END

alone=()
if unshare --net ip link set lo up 2>/dev/null; then
  alone=(unshare --net bash -c 'ip link set lo up && exec "$@"' --)
else
  echo "with the network of this machine: no namespace can be made here"
fi
call() {
  .venv/bin/python -m benchmarks.gpu_day.short pack --tree --into "$dry/packed" --wheels "$wheels" ${site:+--site "$site"}
  rm -rf "$dry/out" && mkdir "$dry/out"
  (cd "$dry" && env -i PATH="$(dirname "$python"):/usr/local/bin:/usr/bin:/bin" HOME="$dry/home" LANG=C.UTF-8 TMPDIR="${TMPDIR:-/tmp}" \
    PYTHON="$python" OUT="$dry/out" WORK="$dry/work" KEPT="$dry/kept" TREE="$dry/tree" LIMIT=900 \
    MORE="--device cpu --small" "${alone[@]}" bash packed/short.sh "$1")
  PYTHONPATH="$dry/packed/packages" "$python" -c 'import carried' || { echo "call $1 has not installed what was carried" >&2; exit 1; }
}
call first
call second
cd "$dry/tree"
PYTHONPATH="$dry/packed/site:$dry/packed/packages:sidecar:proto:operator:tests:." "$python" -m benchmarks.gpu_day \
  --out "$dry/out" --work "$dry/work" --budget 900 --device cpu --small
