#!/usr/bin/env bash
# The plan in calls on a machine that is lent for fifteen minutes and has no network: `bash short.sh first`, and at
# once after it `bash short.sh second`. `look` before them, on a machine of its own, serves models of four layers and runs
# the tests: what fails there would have spoiled the claims. OUT: the folder of the results, empty at the begin of each call, of which eight
# files come back. Runs in the folder that `make gpu-short` packed, or unpacks the tree that was packed beside it.
# LIMIT: seconds of the call; STAGES: other ones than the call's; WORK: models and scratch; MORE: further arguments of
# the plan (--device cpu --small).
set -o pipefail
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 OUT=$(realpath "${OUT:?the folder of the results}")
call=${1:?look, first or second}
python=${PYTHON:-python3} work=${WORK:-/dev/shm/gpu-day} kept=${KEPT:-/tmp/gpu-day-kept}
packed=$(cd "$(dirname "$0")" && pwd)
if [ -e "$packed/tree.tgz" ]; then
  tree=${TREE:-/tmp/gpu-day-tree}
  [ -e "$tree/pyproject.toml" ] || { mkdir -p "$tree" && tar xzf "$packed/tree.tgz" -C "$tree"; }
else
  tree=$PWD
fi
cd "$tree" || exit 1
[ -e "$tree/pyproject.toml" ] || { echo "$tree is no checkout: start this in the repository's root" >&2; exit 2; }
export PYTHONPATH=$packed/site:$packed/packages:$tree/sidecar:$tree/proto:$tree/operator:$tree/tests:$tree

# Packages and core, where this folder lacks them: one that was packed and carried again is as new.
ready() {
  if [ ! -e "$packed/packages/.installed" ]; then
    "$python" -m benchmarks.gpu_day.packages install --from "$packed/wheels" --into "$packed/packages" 2>&1 | tail -n 5 || return
    mkdir -p "$packed/packages" && touch "$packed/packages/.installed"
  fi
  if ! "$python" -c 'import aegaeon_native'; then # built here for another Python
    make -s gpu-ready GPU_PYTHON="$python" GPU_SITE="$packed/site" GPU_PACKAGES="$packed/packages" >"$packed/core.log" 2>&1 ||
      { tail -n 30 "$packed/core.log"; return 1; }
  fi
  echo "==== ready after $SECONDS s"
}

# Stages in this order, each only if its usual time is left.
plan() {
  local only=() stage
  for stage in "$@"; do only+=(--only "$stage"); done
  # shellcheck disable=SC2086 # MORE is several words
  "$python" -m benchmarks.gpu_day --out "$OUT" --work "$work" --budget $((limit - SECONDS)) "${only[@]}" $MORE
}

case $call in
look | first)
  if [ "$call" = look ]; then limit=${LIMIT:-230} MORE="$MORE --layers 4"; else limit=${LIMIT:-575}; fi
  [ "$(id -u)" != 0 ] || [[ $MORE == *cpu* ]] || mount -o remount,size=104G /dev/shm
  nvidia-smi -L || true
  nproc; free -g | head -2; df -h / /dev/shm
  ready || exit 1
  plan ${STAGES:-$("$python" -m benchmarks.gpu_day.short "$call")}
  code=$?
  rm -rf "$kept" && cp -r "$OUT" "$kept"
  ;;
second)
  limit=${LIMIT:-230}
  ready || exit 1
  cp "$kept"/* "$OUT/"
  rm -f "$OUT/events.jsonl.gz" "$OUT/pools.log.gz" # they came back with the first call
  plan ${STAGES:-$("$python" -m benchmarks.gpu_day.short second)}
  code=$?
  ;;
*) echo "look, first or second, not $call" >&2; exit 2 ;;
esac
echo "==== end after $SECONDS s"
tail -n 60 "$OUT/report.md"
exit $code
