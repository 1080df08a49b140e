#!/usr/bin/env bash
# Makes the environment of the rivals (requirements.txt), prints its folder. Nothing of it is needed by anything but
# make bench NAME=peers. Does nothing when it is there already.
#
# It lies beside the project's own in ${XDG_CACHE_HOME:-~/.cache}/headrace/peers-<hash of requirements.txt and of the
# project's environment>, is built aside and renamed when whole, and takes torch and numpy from the project's by a .pth
# file. A rival that cannot be installed is missing from it; the bench then says so.
set -euo pipefail
cd "$(dirname "$0")"

fail() {
  echo "bench/peers/setup.sh: $*" >&2
  exit 1
}

# FFCV asks pkg-config for all of OpenCV and includes all its headers, 200 Debian packages, and uses its resize alone.
install_ffcv() {
  local python=$1 shim
  shim=$(mktemp -d)
  mkdir "$shim/opencv2"
  printf '#include <opencv2/core.hpp>\n#include <opencv2/imgproc.hpp>\n' >"$shim/opencv2/opencv.hpp"
  printf '%s\n' 'Name: OpenCV' 'Description: core and imgproc' 'Version: 4' 'Libs: -lopencv_core -lopencv_imgproc' \
    "Cflags: -I$shim -I/usr/include/opencv4" >"$shim/opencv4.pc"
  PKG_CONFIG_PATH=$shim "$python" -m pip install --no-input --no-deps --no-build-isolation --no-binary ffcv ffcv==1.0.2
  rm -rf "$shim"
}

build_environment() {
  local target=$1 own=$2
  local partial="$target.partial" log="$target.log"
  rm -rf "$partial"
  echo "setup: installing $(grep -vc '^#' requirements.txt) Python packages of rivals into $target (3 GB, some minutes)" >&2
  if ! { "$own/bin/python" -m venv "$partial" &&
    echo "$own/lib/python3.11/site-packages" >"$partial/lib/python3.11/site-packages/headrace.pth" &&
    "$partial/bin/python" -m pip install --no-input --no-compile --no-deps -r requirements.txt; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    fail "the rivals could not be installed (the last lines of $log are above; is there a network?)"
  fi
  install_ffcv "$partial/bin/python" >>"$log" 2>&1 || echo "setup: FFCV could not be compiled and is left out: $log says why" >&2
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
target=$cache/peers-$key
if [ ! -e "$target/whole" ]; then
  exec 9>"$cache/setup.lock"
  flock 9
  [ -e "$target/whole" ] || build_environment "$target" "$own"
  exec 9>&-
fi
echo "$target"
