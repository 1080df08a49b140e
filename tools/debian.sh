# Sourced: bare Debian systems, each in a folder of its own, $root, made by debootstrap and entered by chroot. Nothing of the host is in
# one but how to reach Debian's and Python's packages: apt and pip settings, certificates, name servers. Mounts are made in a mount
# namespace of their own, so they end with it. Needs root and debootstrap.
# shellcheck shell=bash

fail() {
  echo "$(basename "$0" .sh): $*" >&2
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

make_debian() {  # RELEASE: bookworm, with the sources that this host's apt has for it, or another of the same mirror.
  local mirror
  mirror=$(host_mirror)
  [ -n "$mirror" ] || fail "this host's apt knows no Debian 12 (bookworm) to take the packages from"
  echo "$(basename "$0" .sh): debootstrap of $1 into $root"
  eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"
  [ -z "${http_proxy:-}" ] || export http_proxy
  [ -z "${https_proxy:-}" ] || export https_proxy
  debootstrap --variant=minbase "$1" "$root" "$mirror" >"$root.log" 2>&1 ||
    { tail -n 5 "$root.log" >&2; fail "debootstrap failed"; }

  local file
  if [ "$1" = bookworm ]; then
    rm -f "$root/etc/apt/sources.list"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
      if [ -f "$file" ] && grep -qE '(^|[[:space:]])bookworm' "$file"; then copy_in "$file"; fi
    done
  fi
  for file in /etc/apt/apt.conf /etc/apt/apt.conf.d/*; do
    if [ -f "$file" ] && ! grep -q Invoke "$file"; then copy_in "$file"; fi  # Hooks run programs that are not there.
  done
  copy_in /usr/share/keyrings /etc/ssl/certs /usr/local/share/ca-certificates /etc/resolv.conf /etc/pip.conf
}

install_inside() {  # Debian packages.
  inside "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $*" >"$root.log" 2>&1 ||
    { tail -n 5 "$root.log" >&2; fail "apt-get does not work inside"; }
}

# The environment inside: where to fetch from and whom to trust, nothing else of the caller's.
inner_environment() {
  env | grep -E '^(PIP_[A-Z_]+|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE)=' || true
  echo "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
  echo "HOME=/root"
  echo "LANG=C.UTF-8"
  echo "TERM=dumb"
}

inside() {  # COMMAND..., in the tree's clone where there is one.
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

need_root() {
  [ "$(id -u)" -eq 0 ] || fail "needs root, for chroot"
  command -v debootstrap >/dev/null || fail "needs debootstrap: apt-get install debootstrap"
}
