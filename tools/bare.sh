#!/usr/bin/env bash
# Runs this repository's last commit on a bare Debian 12: makes one in a temporary folder (tools/debian.sh) and clones into it.
#
# usage: bare.sh demo [photos] | test [PART...] | run COMMAND...     (needs root and debootstrap; 16 GB in ${TMPDIR:-/var/tmp})
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/debian.sh
. tools/debian.sh

timed() {
  local start=$SECONDS status=0
  inside "$2" || status=$?
  echo "bare: $1: $((SECONDS - start)) s, exit status $status"
  return $status
}

need_root
what=${1:-}
case "$what" in demo | test | run) shift ;; *) fail "usage: bare.sh demo [photos] | test [PART...] | run COMMAND..." ;; esac

root=$(mktemp -d "${TMPDIR:-/var/tmp}/headrace-bare-XXXXXX")
trap 'rm -rf --one-file-system "$root" "$root.log"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
make_debian bookworm
git clone -q "file://$PWD" "$root/root/headrace-tree"
install_inside make  # What a person needs to type `make`; set-up must find the rest missing.

case "$what" in
  demo)
    timed "make demo, nothing installed" "make demo JOB=$*"
    timed "size of .venv" "du -sL --block-size=1MB .venv"
    timed "make demo, again" "make demo JOB=$*"
    ;;
  test) inside "make test PARTS='$*'" ;;
  run) inside "$*" ;;
esac
