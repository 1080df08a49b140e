#!/usr/bin/env bash
# `make test`: sets up, then runs the parts of tools/run_tests.py. The last line is always "N passed, N failed".
# build/.test-failed is there afterwards exactly when something failed (the Makefile looks for it).
cd "$(dirname "$0")/.." || exit 1
mkdir -p build
touch build/.test-failed
if ! tools/setup.sh; then
  echo "0 passed, 1 failed"
  exit 1
fi
.venv/bin/python tools/run_tests.py "$@" && rm -f build/.test-failed
