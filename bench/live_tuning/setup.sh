#!/usr/bin/env bash
# Makes the environment of the rivals (requirements.txt), prints its folder. Nothing of it is needed by anything but
# make bench NAME=live-tuning ARGS=grid. Does nothing when it is there already. As bench/peers/setup.sh does, it is built aside
# and renamed when whole, and takes torch from the project's own environment by a .pth file.
set -euo pipefail
cd "$(dirname "$0")"

fail() {
  echo "bench/live_tuning/setup.sh: $*" >&2
  exit 1
}

build_environment() {
  local target=$1 own=$2
  local partial="$target.partial" log="$target.log"
  rm -rf "$partial"
  echo "setup: installing $(grep -vc '^#' requirements.txt) Python packages of rivals into $target" >&2
  if ! { "$own/bin/python" -m venv "$partial" &&
    echo "$own/lib/python3.11/site-packages" >"$partial/lib/python3.11/site-packages/headrace.pth" &&
    "$partial/bin/python" -m pip install --no-input --no-compile --no-deps -r requirements.txt; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    fail "the rivals could not be installed (the last lines of $log are above; is there a network?)"
  fi
  grep -rlIF "$partial" "$partial/bin" "$partial/pyvenv.cfg" | xargs -r sed -i "s#$partial#$target#g"
  rm -rf "$target"
  touch "$partial/whole"
  sync -f "$partial"
  mv "$partial" "$target"
}

own=$(readlink -f ../../.venv)
[ -x "$own/bin/python" ] || fail "no .venv: run make setup"
key=$({ cat requirements.txt setup.sh; echo "$own"; } | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/headrace
target=$cache/live-tuning-$key
if [ ! -e "$target/whole" ]; then
  exec 9>"$cache/setup.lock"
  flock 9
  [ -e "$target/whole" ] || build_environment "$target" "$own"
  exec 9>&-
fi
echo "$target"
