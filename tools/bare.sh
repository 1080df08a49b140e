#!/usr/bin/env bash
# Runs this repository's last commit on a bare Debian 12: makes one by debootstrap in a temporary folder, clones into it,
# and enters it by chroot. Nothing of the host is in it but how to reach Debian's and Python's packages: apt and pip
# settings, certificates, name servers. Mounts are made in a mount namespace of their own, so they end with it.
#
# usage: bare.sh demo [photos] | test [PART...] | run COMMAND...     (needs root and debootstrap; 16 GB in ${TMPDIR:-/var/tmp})
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "bare: $*" >&2
  exit 1
}

copy_in() {  # Existing paths of the host, links resolved: what they point at may not be there.
  local path
  for path in "$@"; do
    [ -e "$path" ] || continue
    mkdir -p "$root$(dirname "$path")"
    cp -rL --no-preserve=ownership "$path" "$root$(dirname "$path")/"
  done
}

host_mirror() {
  apt-get indextargets --format '$(SITE) $(CODENAME) $(COMPONENT)' | awk '$2 == "bookworm" && $3 == "main" {print $1; exit}'
}

make_debian() {
  local mirror
  mirror=$(host_mirror)
  [ -n "$mirror" ] || fail "this host's apt knows no Debian 12 (bookworm) to take the packages from"
  echo "bare: debootstrap into $root"
  eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"
  [ -z "${http_proxy:-}" ] || export http_proxy
  [ -z "${https_proxy:-}" ] || export https_proxy
  debootstrap --variant=minbase bookworm "$root" "$mirror" >"$root.log" 2>&1 ||
    { tail -n 5 "$root.log" >&2; fail "debootstrap failed"; }

  local file
  rm -f "$root/etc/apt/sources.list"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    if [ -f "$file" ] && grep -qE '(^|[[:space:]])bookworm' "$file"; then copy_in "$file"; fi
  done
  for file in /etc/apt/apt.conf /etc/apt/apt.conf.d/*; do
    if [ -f "$file" ] && ! grep -q Invoke "$file"; then copy_in "$file"; fi  # Hooks run programs that are not there.
  done
  copy_in /usr/share/keyrings /etc/ssl/certs /usr/local/share/ca-certificates /etc/resolv.conf /etc/pip.conf
}

# The environment inside: where to fetch from and whom to trust, nothing else of the caller's.
inner_environment() {
  env | grep -E '^(PIP_[A-Z_]+|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE)=' || true
  echo "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
  echo "HOME=/root"
  echo "LANG=C.UTF-8"
  echo "TERM=dumb"
}

inside() {
  local settings
  mapfile -t settings < <(inner_environment)
  # shellcheck disable=SC2016  # expanded inside
  unshare --mount --pid --fork --kill-child bash -c '
    set -e
    root=$1; shift
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    exec chroot "$root" "$@"' bare "$root" env -i "${settings[@]}" bash -c "cd ~/headrace-tree 2>/dev/null || cd /; $*" </dev/null
}

timed() {
  local start=$SECONDS status=0
  inside "$2" || status=$?
  echo "bare: $1: $((SECONDS - start)) s, exit status $status"
  return $status
}

[ "$(id -u)" -eq 0 ] || fail "needs root, for chroot"
command -v debootstrap >/dev/null || fail "needs debootstrap: apt-get install debootstrap"
what=${1:-}
case "$what" in demo | test | run) shift ;; *) fail "usage: bare.sh demo [photos] | test [PART...] | run COMMAND..." ;; esac

root=$(mktemp -d "${TMPDIR:-/var/tmp}/headrace-bare-XXXXXX")
trap 'rm -rf --one-file-system "$root" "$root.log"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
make_debian
git clone -q "file://$PWD" "$root/root/headrace-tree"
# What a person needs to type `make`; set-up must find the rest missing.
inside "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends make" >"$root.log" 2>&1 ||
  { tail -n 5 "$root.log" >&2; fail "apt-get does not work inside"; }

case "$what" in
  demo)
    timed "make demo, nothing installed" "make demo JOB=$*"
    timed "size of .venv" "du -sL --block-size=1MB .venv"
    timed "make demo, again" "make demo JOB=$*"
    ;;
  test) inside "make test PARTS='$*'" ;;
  run) inside "$*" ;;
esac
