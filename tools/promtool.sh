#!/usr/bin/env bash
# Prints the path of promtool, with which tests/readers has Prometheus read what we export: the machine's own, or that of Debian's package
# prometheus, taken out of it into ${XDG_CACHE_HOME:-~/.cache}/headrace. Installing the package would start a server. Needs the network once.
set -euo pipefail

fail() {
  echo "promtool: $*" >&2
  exit 1
}

fetch_package() {  # FOLDER
  (cd "$1" && apt-get -q download prometheus)
}

take_out() {  # TARGET, by way of a file beside it.
  local folder log=$1.log
  folder=$(mktemp -d)
  chmod 755 "$folder"  # apt fetches as a user of its own.
  if ! { fetch_package "$folder" || { [ "$(id -u)" -eq 0 ] && apt-get -q update && fetch_package "$folder"; }; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    rm -rf "$folder"
    fail "apt-get cannot download prometheus (its last lines are above; does apt-get update help? is there a network?)"
  fi
  dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb | tar -x -O ./usr/bin/promtool >"$1.partial"
  chmod +x "$1.partial"
  mv "$1.partial" "$1"
  rm -rf "$folder" "$log"
}

if command -v promtool; then exit; fi
cache=${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/headrace
target=$cache/promtool
if [ ! -x "$target" ]; then
  mkdir -p "$cache" || fail "cannot make $cache"
  exec 9>"$cache/setup.lock"
  flock 9
  [ -x "$target" ] || take_out "$target"
  exec 9>&-
fi
echo "$target"
