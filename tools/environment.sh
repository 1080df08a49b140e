#!/usr/bin/env bash
# Makes a Python environment for what the project itself does not need, as frameworks that a test runs in, and prints its folder.
# Does nothing when it is there already. Needs the network only for that.
#
# usage: environment.sh NAME REQUIREMENTS     REQUIREMENTS is a file with every version fixed: tests/frameworks_requirements.txt
#
# It lies beside the project's own in ${XDG_CACHE_HOME:-~/.cache}/headrace/NAME-<hash of REQUIREMENTS, of this script and of the
# project's environment>, is built aside and renamed when whole, and takes torch and numpy from the project's by a .pth file.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "environment: $*" >&2
  exit 1
}

packages_of() {
  "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'
}

# Without what the packages ask for in turn, which the file lists where it is needed: pip would install torch a second time.
build_environment() {
  local target=$1 own=$2 requirements=$3
  local partial="$target.partial" log="$target.log"
  rm -rf "$partial"
  echo "environment: installing $(grep -vc '^#' "$requirements") Python packages into $target" >&2
  if ! { "$own/bin/python" -m venv "$partial" &&
    packages_of "$own" >"$(packages_of "$partial")/headrace.pth" &&
    "$partial/bin/python" -m pip install --no-input --no-compile --no-deps -r "$requirements"; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    fail "$requirements could not be installed (the last lines of $log are above; is there a network?)"
  fi
  # The scripts name their interpreter by its whole path, which is about to change.
  grep -rlIF "$partial" "$partial/bin" "$partial/pyvenv.cfg" | xargs -r sed -i "s#$partial#$target#g"
  rm -rf "$target"
  touch "$partial/whole"
  sync -f "$partial"  # A name that outlives a power cut must not hold half of the files.
  mv "$partial" "$target"
  rm -f "$log"
}

[ $# -eq 2 ] || fail "wanted NAME REQUIREMENTS, found ${*:-nothing}"
[ -f "$2" ] || fail "there is no $2"
own=$(readlink -f .venv)
[ -x "$own/bin/python" ] || fail "no .venv: run make setup"
key=$({ cat "$2" tools/environment.sh; echo "$own"; } | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/headrace
target=$cache/$1-$key
if [ ! -e "$target/whole" ]; then
  mkdir -p "$cache" || fail "cannot make $cache"
  exec 9>"$cache/setup.lock"
  flock 9
  [ -e "$target/whole" ] || build_environment "$target" "$own" "$2"
  exec 9>&-
fi
echo "$target"
