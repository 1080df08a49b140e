#!/usr/bin/env bash
# Makes a Debian 12 machine able to build and test headrace: Debian packages, and the Python environment in .venv.
# Does nothing when both are there already, in about 50 ms. Needs the network only for what is missing.
#
# usage: setup.sh [SET...]     a set is a list of further Debian packages, tools/apt-packages-SET.txt: photos
#
# The environment lies in ${XDG_CACHE_HOME:-~/.cache}/headrace/venv-<hash of requirements.txt and Python's version>, so
# that clones share it; .venv is a link to it. It is built aside and renamed when whole: a folder of that name is whole.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "setup: $*" >&2
  exit 1
}

install_debian_packages() {  # Of tools/apt-packages.txt and of each set named.
  command -v dpkg-query >/dev/null || fail "no dpkg-query: this is not Debian; only Debian 12 is supported"
  local wanted missing name lists=(tools/apt-packages.txt)
  for name in "$@"; do
    [ -f "tools/apt-packages-$name.txt" ] || fail "no set of packages named $name: there is no tools/apt-packages-$name.txt"
    lists+=("tools/apt-packages-$name.txt")
  done
  wanted=$(grep -hv '^#' "${lists[@]}")
  # shellcheck disable=SC2086  # one word a package
  missing=$(comm -23 <(sort <<<"$wanted") \
    <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $wanted 2>/dev/null | sed -n 's/^installed //p' | sort) | xargs)
  [ -n "$missing" ] || return 0

  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "missing Debian packages and neither root nor sudo; as root: apt-get install $missing"
    sudo -n true 2>/dev/null || [ -t 0 ] ||
      fail "missing Debian packages, and sudo asks for a password; as root: apt-get install $missing"
    as_root=(sudo)
  fi
  echo "setup: installing Debian packages: $missing"
  local log
  log=$(mktemp)
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300)
  # shellcheck disable=SC2086
  if ! { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    rm -f "$log"
    fail "apt-get could not install: $missing (its last lines are above; is there a network?)"
  fi
  rm -f "$log"
}

find_python() {
  local candidate
  for candidate in /usr/bin/python3.11 python3.11 python3; do
    if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  fail "wanted Python 3.11 with venv (Debian 12's), found $(python3 --version 2>&1 || echo none)"
}

is_whole() {
  [ -e "$1/whole" ] && "$1/bin/python" -c '' 2>/dev/null  # Python goes when Debian's next version replaces it.
}

# Fills $1 (the final place) from requirements.txt by way of a folder beside it.
build_environment() {
  local target=$1 python=$2
  local partial="$target.partial" log="$target.log"
  local free_kb
  rm -rf "$partial"  # An earlier set-up was killed here; the lock says that none is at work.
  free_kb=$(df -Pk "$(dirname "$target")" | awk 'NR == 2 {print $4}')
  [ "$free_kb" -gt 8000000 ] || fail "$(dirname "$target") has $((free_kb / 1000)) MB free; the environment and its download need 8000"
  echo "setup: installing torch and $(($(grep -vc '^#' requirements.txt) - 1)) other Python packages into $target (4.7 GB, some minutes)"
  # Byte code is left out: 160 MB that Python writes again for the few modules it imports.
  if ! { "$python" -m venv "$partial" &&
    "$partial/bin/python" -m pip install --no-input --no-compile --no-deps -r requirements.txt &&
    "$partial/bin/python" -m pip check &&
    "$partial/bin/python" -c 'import torch, torchvision'; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    fail "the Python environment could not be installed (the last lines of $log are above; is there a network?)"
  fi
  # The scripts name their interpreter by its whole path, which is about to change.
  grep -rlIF "$partial" "$partial/bin" "$partial/pyvenv.cfg" | xargs -r sed -i "s#$partial#$target#g"
  rm -rf "$target"
  touch "$partial/whole"
  sync -f "$partial"  # A name that outlives a power cut must not hold half of the files.
  mv "$partial" "$target"
  rm -f "$log"
}

link_environment() {
  local python version key cache target
  python=$(find_python) || exit 1
  version=$("$python" -c 'import platform; print(platform.python_version())')
  key=$({ grep -v '^#' requirements.txt; echo "$version"; } | sha256sum | cut -c1-16)
  cache=${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/headrace
  target=$cache/venv-$key
  if ! is_whole "$target"; then
    mkdir -p "$cache" || fail "cannot make $cache"
    exec 9>"$cache/setup.lock"
    flock 9
    if ! is_whole "$target"; then  # Another set-up may have built it while this one waited.
      build_environment "$target" "$python"
    fi
    exec 9>&-
  fi
  if [ "$(readlink .venv || true)" != "$target" ]; then
    [ ! -e .venv ] || [ -L .venv ] || fail ".venv is a folder of its own; set-up makes it a link to $target: move yours away"
    ln -sfn "$target" .venv
  fi
}

install_debian_packages "$@"
link_environment
