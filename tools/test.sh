#!/usr/bin/env bash
# `make test`: sets up, with the packages of the photographs, then runs the parts of tools/run_tests.py. The last line is
# always "N passed, N failed", which is left in build/test/count too.
cd "$(dirname "$0")/.." || exit 1
if ! tools/setup.sh photos; then
  mkdir -p build/test
  echo "0 passed, 1 failed" | tee build/test/count
  exit 1
fi
exec .venv/bin/python tools/run_tests.py "$@"
