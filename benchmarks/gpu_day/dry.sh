#!/usr/bin/env bash
# `dry.sh PYTHON [WHEELS [SITE]]`: packs the last commit and runs the calls of short.sh in small on a CPU, in a network
# namespace of their own where this user may make one, then what is left of the plan. Everything lies in build/gpu/dry.
set -euo pipefail
python=$1 dry=$PWD/build/gpu/dry
wheels=${2:-$dry/no-wheels}
rm -rf "$dry" && mkdir -p "$dry/out" "$dry/no-wheels" "$dry/home"
.venv/bin/python -m benchmarks.gpu_day.short pack --tree --into "$dry/packed" --wheels "$wheels" ${3:+--site "$3"}

alone=()
if unshare --net ip link set lo up 2>/dev/null; then
  alone=(unshare --net bash -c 'ip link set lo up && exec "$@"' --)
else
  echo "with the network of this machine: no namespace can be made here"
fi
call() {
  rm -rf "$dry/out" && mkdir "$dry/out"
  (cd "$dry" && env -i PATH="$(dirname "$python"):/usr/local/bin:/usr/bin:/bin" HOME="$dry/home" LANG=C.UTF-8 TMPDIR="${TMPDIR:-/tmp}" \
    PYTHON="$python" OUT="$dry/out" WORK="$dry/work" KEPT="$dry/kept" TREE="$dry/tree" LIMIT=900 \
    MORE="--device cpu --small" "${alone[@]}" bash packed/short.sh "$1")
}
call first
call second
cd "$dry/tree"
PYTHONPATH="$dry/packed/site:$dry/packed/packages:sidecar:proto:operator:tests:." "$python" -m benchmarks.gpu_day \
  --out "$dry/out" --work "$dry/work" --budget 900 --device cpu --small
