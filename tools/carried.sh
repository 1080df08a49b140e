#!/usr/bin/env bash
# What runs of this tree on a machine that has torch but nothing to build with or to install from: its package, in build/carried.
#
# usage: carried.sh make PYTHON   fills build/carried with the package for the Python of that machine, whose version PYTHON has (an
#                                 interpreter with its headers), with what that imports of PyPI beside torch, and with Debian's
#                                 libraries that it needs, all without symbols. Behind make build; takes what a first `make` takes,
#                                 and little from then on; needs the network.
#        carried.sh run WORD...   there: runs a command that finds the package, as `make check ON=gpu` does
set -euo pipefail
cd "$(dirname "$0")/.."

CARRIED=build/carried
LIMIT_MB=60

fail() {
  echo "carried: $*" >&2
  exit 1
}

# Debian's libraries that these files need: neither torch's nor the C and C++ run time, which are of the machine at hand.
libraries_of() {
  ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -Ev '/(libc|libm|libutil|libpthread|libdl|librt|libgcc_s|libstdc\+\+|ld-linux[^/]*)\.so|/(torch|nvidia)/|/build/'
}

make_carried() {
  local python version tree missing
  python=$(command -v "$1") && version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') ||
    fail "wanted a Python, found $1"
  python=$(realpath -s "$python")
  tree=build/python$version
  cmake -S . -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O2 -g1" -DHEADRACE_TESTS=OFF \
    -DHEADRACE_BENCHES=OFF -DHEADRACE_PYTHON="$python" >"/dev/null"
  ninja -C "$tree" -j "$(nproc)" _core _engine headrace_main
  [ -f build/release/build.ninja ] || fail "no build/release; wanted what make build leaves there"
  ninja -C build/release -j "$(nproc)" _core
  missing=$(ldd "$tree"/lib/libheadrace{,_torch}.so | grep "not found" || true)
  [ -z "$missing" ] || fail "a library that the package needs is not there: $missing"
  rm -rf "$CARRIED" "$CARRIED.partial"
  mkdir -p "$CARRIED.partial/lib"
  # What the plugin needs, torch's and NVIDIA's libraries, that machine has.
  [ -f "$tree/lib/libheadrace_gpu.so" ] || fail "no libheadrace_gpu.so in $tree/lib; wanted a torch with CUDA in .venv"
  cp "$tree"/lib/libheadrace{,_torch}.so.[0-9]* "$tree/lib/libheadrace_gpu.so" "$CARRIED.partial/lib"
  cp -rL "$tree"/python/{headrace,performance_optimization} "$CARRIED.partial"
  # _core is one file for every Python. The one that the project's own Python makes is carried, as a wheel has it.
  cp -L build/release/python/headrace/_core.abi3.so "$CARRIED.partial/headrace"
  "$python" -m pip install --no-input --quiet --no-compile --no-deps --target "$CARRIED.partial" \
    "$(grep '^nanobind-backend==' requirements.txt)"
  # shellcheck disable=SC2046  # one word a library
  cp -L $(libraries_of "$tree"/lib/libheadrace{,_torch}.so) "$CARRIED.partial/lib"
  find "$CARRIED.partial" -name '*.so*' -type f -exec strip --strip-unneeded {} +
  mv "$CARRIED.partial" "$CARRIED"
  local size_mb
  size_mb=$(du -sm "$CARRIED" | cut -f1)
  [ "$size_mb" -le "$LIMIT_MB" ] || fail "$CARRIED has $size_mb MB; wanted $LIMIT_MB at most"
  echo "$CARRIED: $size_mb MB, for Python $version"
}

case "${1-}" in
  make) [ $# -eq 2 ] || fail "wanted make PYTHON, found '$*'"; make_carried "$2" ;;
  run)
    [ $# -ge 2 ] || fail "wanted run WORD..., found no word"
    [ -d "$CARRIED" ] || fail "no $CARRIED; wanted what 'tools/carried.sh make PYTHON' fills"
    shift
    PYTHONPATH="$PWD/$CARRIED" LD_LIBRARY_PATH="$PWD/$CARRIED/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@" ;;
  *) fail "wanted make PYTHON or run WORD..., found '$*'" ;;
esac
